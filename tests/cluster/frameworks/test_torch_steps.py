"""Optimizer steps and waits for a DataLoader as spans on real ranks; the user's own spans."""

import pytest

from cells import failure, finish, log
from spanned import names, spans

pytestmark = pytest.mark.cluster


def done(cluster, source):
    run = finish(cluster, source)
    assert run.state == "done", failure(run)
    return run


def test_optimizer_steps_are_recorded(frameworks):
    run = done(
        frameworks,
        """
        import time, torch
        model = torch.nn.Linear(4, 1)
        adam = torch.optim.Adam(model.parameters())
        class Slow(torch.optim.SGD):
            def step(self, closure=None):
                time.sleep(0.02)
                return super().step(closure)
        slow = Slow(model.parameters(), 0.1)
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            adam.step()
        before = time.time_ns() // 1000
        slow.step()
        print(before, time.time_ns() // 1000)
        """,
    )
    for rank in (0, 1):
        found = spans(run, rank, "step")
        assert [each.name for each in found] == ["Adam.step"] * 3 + ["Slow.step"]
        assert found[-1].end - found[-1].start >= 20_000
        before, after = (int(each) - run.info.start for each in log(run, rank).split())
        assert before <= found[-1].start + 1 and found[-1].end - 1 <= after


def test_a_failed_step_is_not_recorded_and_a_nested_step_only_once(frameworks):
    run = done(
        frameworks,
        """
        class Broken(torch.optim.SGD):
            def step(self, closure=None):
                if self.broken:
                    raise ValueError("mine")
                return super().step(closure)
        broken = Broken(model.parameters(), 0.1)
        broken.broken = True
        try:
            broken.step()
        except ValueError:
            pass
        broken.broken = False
        broken.step()
        adam.step()
        import horovod.torch as hvd
        hvd.init()
        wrapped = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), 0.1), named_parameters=model.named_parameters()
        )
        model(torch.ones(2, 4)).sum().backward()
        wrapped.step()
        """,
    )
    for rank in (0, 1):
        assert names(run, rank, "step") == ["Broken.step", "Adam.step", "SGD.step"]


def test_waits_for_a_data_loader_are_recorded(frameworks):
    run = done(
        frameworks,
        """
        import time
        from torch.utils.data import DataLoader, Dataset
        class Slow(Dataset):
            def __len__(self):
                return 3
            def __getitem__(self, at):
                time.sleep(0.02)
                next(iter(inner))
                with span("made"):
                    return float(at)
        inner = DataLoader([1, 2])
        for workers in (0, 1):
            for batch in DataLoader(Slow(), num_workers=workers):
                pass
        """,
    )
    for rank in (0, 1):
        found = spans(run, rank, "data")
        # The last wait of each loader finds that there are no more batches.
        assert [each.name for each in found] == ["DataLoader"] * 8
        assert all(each.end - each.start >= 20_000 for each in found[:3])
        # Worker processes report nothing.
        made = spans(run, rank, "user")
        assert [each.name for each in made] == ["made"] * 3
        for wait, each in zip(found, made, strict=False):
            assert wait.start <= each.start and each.end <= wait.end
        assert found[3].start >= made[-1].end


def test_spans_defined_by_the_user_are_recorded(frameworks):
    run = done(
        frameworks,
        """
        import threading, time, torch
        with span("outer", epoch=3):
            time.sleep(0.01)
            with span("inner"):
                time.sleep(0.01)
        @span("made by a decorator")
        def work():
            return 5
        assert work() == work() == 5
        assert work.__name__ == "work"
        try:
            with span("raises"):
                raise ValueError("mine")
        except ValueError as error:
            assert str(error) == "mine"
        with span("odd", what=[1], loss=float("nan"), model=torch.nn.ReLU()):
            pass
        threads = [threading.Thread(target=work) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        """,
    )
    for rank in (0, 1):
        found = spans(run, rank, "user")
        assert [each.name for each in found[:2]] == ["outer", "inner"]
        outer, inner = found[:2]
        assert outer.about == {"name": "outer", "epoch": 3}
        assert outer.start <= inner.start and inner.end <= outer.end
        assert inner.end - inner.start >= 10_000
        assert found[5].about["what"] == "[1]" and found[5].about["loss"] == "nan"
        assert found[5].about["model"] == "ReLU()"
        assert [each.name for each in found[2:]] == [
            *["made by a decorator"] * 2, "raises", "odd", *["made by a decorator"] * 4,
        ]  # fmt: skip
