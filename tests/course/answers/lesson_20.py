"""Capstone."""

import re

from lesson_runner import Played, read, solutions

_SOLVED = solutions(read("20_capstone.ipynb"))
_WRAP = (
    "optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())\n"
)
_BROADCAST = "hvd.broadcast_parameters(model.state_dict(), root_rank=0)\n"


def _but(exercise: str, *changes: tuple[str, str]) -> str:
    """Return the solution of an exercise, with some of its text replaced."""
    source = _SOLVED[exercise]
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    return source


WRONG = {
    "capstone.1": [
        (_but("capstone.1", ("manual_seed(epoch)", "manual_seed(0)")), "same order"),
        (
            _but(
                "capstone.1",
                ("        optimizer.zero_grad()\n", ""),
                (
                    "        optimizer.step()",
                    "        optimizer.zero_grad()\n        optimizer.step()",
                ),
            ),
            "of the validation images",
        ),
        (_but("capstone.1", ("split(32)", "split(32)[:20]")), "its share"),
        (
            _but(
                "capstone.1",
                ("torch.randperm(len(images))", "torch.randint(len(images), (len(images),))"),
            ),
            "different",
        ),
    ],
    "capstone.2": [
        (_but("capstone.2", (_BROADCAST, "")), "different networks|not on the way"),
        # Each rank trains alone; the broadcast at the end hides it.
        (_but("capstone.2", (_WRAP, "")) + _BROADCAST, "not on the way"),
        (
            _but("capstone.2", ("rank=hvd.rank(), drop", "rank=0, drop")),
            "by two ranks",
        ),
        (_but("capstone.2", ("    sampler.set_epoch(epoch)\n", "")), "same order"),
        # The broadcast after each step discards the gradients of all ranks but rank 0.
        (
            _but(
                "capstone.2",
                (_WRAP, ""),
                ("        optimizer.step()\n", f"        optimizer.step()\n        {_BROADCAST}"),
            ),
            "are not averaged",
        ),
        (
            _but(
                "capstone.2",
                (
                    "        x, y = images[batch]\n",
                    "        x, y = images._pictures[batch], images._labels[batch]\n",
                ),
            ),
            "its share",
        ),
    ],
    "capstone.3": [
        (
            _but(
                "capstone.3",
                (
                    "        optimizer.step()\n    x, y",
                    "        optimizer.step()\n        validation[range(60)]\n    x, y",
                ),
            ),
            "an efficiency of",
        ),
        (
            _but("capstone.3", ("range(hvd.rank(), len(validation), hvd.size())", "range(10)")),
            "validation images are read",
        ),
        (
            "import rankroom.course.slow_images\n\nrankroom.course.slow_images.SECONDS = 1e-6\n"
            + _SOLVED["capstone.3"]
            + "rankroom.course.slow_images.SECONDS = 0.001\n",
            "the disk was made faster",
        ),
    ],
    "capstone.4": [
        (
            _but("capstone.4", ('    optimizer.load_state_dict(state["optimizer"])\n', "")),
            "differ by up to",
        ),
        (
            _but(
                "capstone.4",
                ("    if hvd.rank() == 0:\n        state", "    if True:\n        state"),
            ),
            "calls torch.save as well|fails",
        ),
        # Reads all images but learns nothing, so a kill makes no difference to the weights.
        (
            _but("capstone.4", ("        optimizer.step()\n", "        optimizer.synchronize()\n")),
            "of the validation images",
        ),
    ],
    "capstone.5": [
        (_but("capstone.5", (" || ", "\n")), "should start it once"),
        (_but("capstone.5", (" || rankroom", " || true || rankroom")), "should start it twice"),
        (_but("capstone.5", ("train.py\n", "train.py || true\n")), "exit status is 0"),
        (_but("capstone.5", ("--ranks {ranks}", "--ranks 3")), "on 3 ranks"),
        (_but("capstone.5", ("--ranks {ranks}", "--ranks 2")), "on 2 ranks"),
    ],
}
_DDP = """import torch
import torch.distributed as dist
import torch.nn.functional as F
from rankroom.course.slow_images import SlowImages, network
from torch.utils.data import DataLoader, DistributedSampler

if not dist.is_initialized():
    dist.init_process_group("gloo")
images, model = SlowImages("train"), network()
wrapped = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * size, momentum=0.9)
sampler = DistributedSampler(images)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in DataLoader(images, batch_size=32, sampler=sampler):
        optimizer.zero_grad()
        F.cross_entropy(wrapped(x), y).backward()
        optimizer.step()
"""
_AHEAD = """    batches = torch.tensor(list(sampler)).split(32)
    coming = pool.submit(images.__getitem__, batches[0])
    for following in (*batches[1:], None):
        x, y = coming.result()
        if following is not None:
            coming = pool.submit(images.__getitem__, following)
"""
RIGHT = {
    "capstone.1": [
        _but("capstone.1", ("    torch.manual_seed(epoch)\n", "")),
    ],
    "capstone.2": [
        _DDP,
        _DDP.replace("sampler=sampler)", "sampler=sampler, num_workers=2)"),
    ],
    "capstone.3": [
        _but(
            "capstone.3",
            ("import rankroom\n", "import rankroom\nfrom concurrent.futures import ThreadPoolExecutor\n"),
            ("hvd.init()\n", "hvd.init()\npool = ThreadPoolExecutor(1)\n"),
            ("    for batch in torch.tensor(list(sampler)).split(32):\n        x, y = images[batch]\n", _AHEAD),
        ),
    ],
    "capstone.5": [
        'def job(ranks):\n    return f"""#!/bin/bash\n#SBATCH --time=0:30:00\n'
        'for attempt in 1 2; do\n    rankroom run --ranks {ranks} train.py && exit 0\n'
        'done\nexit 1\n"""',
    ],
}  # fmt: skip


def claims(played: Played) -> None:
    assert "of the validation images" in played.verdicts["capstone.1"][0][1]
    assert "its share" in played.verdicts["capstone.2"][0][1]
    assert "an efficiency of" in played.verdicts["capstone.3"][0][1]
    assert "that were left" in played.verdicts["capstone.4"][0][1]
    said = played.text("compare")
    assert re.search(r"1 rank .*done", said) and re.search(r"2 ranks .*done", said), said
    assert "loss" in said
    assert played.text("tidy").count("was there") == 2
