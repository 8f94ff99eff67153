"""Checkpoint and resume."""

import re

from lesson_runner import Played

_WEIGHTS = (
    "def pack(model, optimizer, epoch):\n"
    "    return {'model': model.state_dict(), 'optimizer': %s, 'random': %s, 'epoch': epoch}\n\n\n"
    "def unpack(state, model, optimizer):\n    model.load_state_dict(state['model'])\n"
    "    if state['optimizer']:\n        optimizer.load_state_dict(state['optimizer'])\n"
    "    if state['random'] is not None:\n        torch.set_rng_state(state['random'])\n"
    "    return state['epoch']"
)
WRONG = {
    "checkpoint.1": [
        (_WEIGHTS % ("optimizer.state_dict()", "None"), "random numbers"),
        (_WEIGHTS % ("None", "torch.get_rng_state()"), "momentum"),
        (
            "def pack(model, optimizer, epoch):\n    return {'epoch': epoch}\n\n\n"
            "def unpack(state, model, optimizer):\n    return state['epoch']",
            "the weights it was made with",
        ),
    ],
    "checkpoint.2": [
        (
            "def write(state, path):\n    path.unlink(missing_ok=True)\n"
            "    torch.save(state, path.with_suffix('.new'))\n"
            "    path.with_suffix('.new').replace(path)",
            "now there is none",
        ),
        (
            "from torch import save\n\n\ndef write(state, path):\n"
            "    fresh = path.with_suffix('.new')\n    save(state, fresh)\n    fresh.replace(path)",
            "call torch.save by that name",
        ),
        # For a moment there is no file at `path`.
        (
            "def write(state, path):\n    fresh = path.with_suffix('.new')\n    torch.save(state, fresh)\n"
            "    path.unlink(missing_ok=True)\n    fresh.rename(path)",
            "taken away before the new one has its name",
        ),
        (
            "def write(state, path):\n    fresh = path.with_suffix('.new')\n    torch.save(state, fresh)\n"
            "    if path.exists():\n        path.rename(path.with_suffix('.old'))\n    fresh.rename(path)",
            "taken away before the new one has its name",
        ),
        # Survives a failed `torch.save`, but the file at `path` is incomplete for a moment.
        (
            "import io\n\n\ndef write(state, path):\n    buffer = io.BytesIO()\n"
            "    torch.save(state, buffer)\n    path.write_bytes(buffer.getvalue())",
            "over the one before, into the same file",
        ),
        (
            "import shutil, tempfile\n\n\ndef write(state, path):\n"
            "    fresh = tempfile.NamedTemporaryFile(delete=False).name\n"
            "    torch.save(state, fresh)\n    shutil.move(fresh, path)",
            "made in another folder",
        ),
        (
            "import shutil\n\n\ndef write(state, path):\n    fresh = path.with_suffix('.new')\n"
            "    torch.save(state, fresh)\n    shutil.copyfile(fresh, path)",
            "over the one before, into the same file",
        ),
    ],
    "checkpoint.3": [
        (
            "def rest(order, done, rank, size):\n    return order[done:][rank::size]",
            "equally many",
        ),
        (
            "def rest(order, done, rank, size):\n    left = order[done // size :]\n"
            "    return left[: len(left) // size * size][rank::size]",
            "seen before the break",
        ),
    ],
}


def claims(played: Played) -> None:
    assert "'everything': 'the same network'" in played.text("resumed")
    assert "'the weights alone': 'another'" in played.text("resumed")
    killed = played.text("killed")
    assert re.findall(r"epoch (\d) on 2 ranks", killed) == ["0", "1"]
    assert "SIGKILL" in killed
    assert re.findall(r"epoch (\d) on 3 ranks", played.text("again")) == ["2", "3", "4"]
    assert re.search(r"\(3, \d+\.\d+\)", played.text("elastic"))
    for loss, end, here, whole in re.findall(
        r"loss ([\d.]+), then ([\d.]+); ([\d,]+) of ([\d,]+) bytes", played.text("sharded-train")
    ):
        assert float(end) < float(loss) / 2
        share = int(here.replace(",", "")) / int(whole.replace(",", ""))
        assert 0.9 / played.ranks < share < 1.1 / played.ranks
    assert "bytes are on this rank" in played.text("sharded-train")
    assert "'as it was': True" in played.text("loaded")
    assert played.text("loaded").count("distcp") >= 2
    assert {"resume.py", "resume.pt"} <= set(played.text("tidy").split())
