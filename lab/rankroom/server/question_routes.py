"""Questions of ssh over HTTP; an answer goes from the browser to ssh and is never stored."""

from __future__ import annotations

from jupyter_core.utils import ensure_async

from rankroom.server.handler import Handler, allowed
from rankroom.ssh import questions

QUESTION_FIELDS = ("id", "host", "text", "secret", "asked")


class Questions(Handler):
    @allowed
    async def get(self) -> None:
        # A user who may not answer is shown no questions.
        asked = self.authorizer.is_authorized(self, self.current_user, "write", self.auth_resource)
        if not await ensure_async(asked):
            self.finish({"questions": []})
            return
        found = await self.threads.state("questions", questions.pending)
        told = [{key: getattr(question, key) for key in QUESTION_FIELDS} for question in found]
        self.finish({"questions": told})


class Answer(Handler):
    """Answer a question; a body without an answer declines it."""

    @allowed
    async def post(self, question: str) -> None:
        said = self.words()
        if "answer" in said:
            await self.threads.run(lambda: questions.answer(question, said["answer"]))
        else:
            await self.threads.run(lambda: questions.refuse(question))
        self.finish({"message": "the answer was passed on to ssh"})


ROUTES: list[tuple[str, type[Handler]]] = [
    (r"rankroom/questions", Questions),
    (r"rankroom/questions/([^/]+)", Answer),
]
