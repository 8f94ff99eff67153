"""Other projects' examples, unmodified, as cells on the ranks of a cluster.

Each has a cluster of its own. A first cell sets the folder, the command line's arguments, and data
in place of what the example would download; its source is the second cell. In elastic examples,
both are one cell, as a rank that is killed and restarted runs only that cell again.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from foreign import packages
from rankroom.cluster.local import Cluster
from rankroom.record.store import Store
from rankroom.run.run import Run

LIMIT_S = 420
END_S = 60.0  # for an interrupted run to end
LOOK_S = 0.5

# scikit-learn's digits, in the number and size of MNIST's images, which Keras would download.
DIGITS = """
import keras, numpy, sklearn.datasets, sys
def load_data(path=None):
    digits = sklearn.datasets.load_digits()
    images = numpy.pad(numpy.kron(digits.images, numpy.ones((3, 3))), [(0, 0), (2, 2), (2, 2)])
    images, labels = (images * 255 / 16).astype("uint8"), digits.target.astype("uint8")
    images, labels = numpy.resize(images, (70000, 28, 28)), numpy.resize(labels, 70000)
    return (images[:60000], labels[:60000]), (images[60000:], labels[60000:])
for name, module in list(sys.modules.items()):
    if name.endswith("datasets.mnist"):
        module.load_data = load_data
"""
# The index has torchvision for CUDA only. With a CPU build of PyTorch, its compiled part does not
# load, and the import of the rest needs the operators that this part would register.
VISION = """
import sys, torch
try:
    import torchvision
except RuntimeError:
    boxes = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        boxes.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    import torchvision
"""
# Noise from torchvision in place of images that an example would download.
NOISE = (
    VISION
    + """
import functools
def noise(root, train=True, download=False, transform=None, *, size):
    return torchvision.datasets.FakeData(256 if train else 64, size, transform=transform)
torchvision.datasets.CIFAR10 = functools.partial(noise, size=(3, 32, 32))
torchvision.datasets.MNIST = functools.partial(noise, size=(1, 28, 28))
"""
)
# For an example that was written for Keras 2, and uses parts that Keras 3 lacks.
LEGACY = "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\nimport tf_keras as keras\n"


def variables(prefix: str, **options: object) -> str:
    """Return code that sets options in the environment, as Lightning's command line does."""
    given = {f"{prefix}_{name.upper()}": str(value) for name, value in options.items()}
    return f"import os\nos.environ.update({given})\n"


@dataclass(frozen=True)
class Example:
    """An example, which has succeeded if its output contains `words`.

    With `enough`, it would run for long after these words, and is interrupted. The last rank of an
    elastic example is killed after the words `killed`.
    """

    repository: str  # "" for an example in a package
    path: str
    words: str
    arguments: str = ""
    before: str = ""
    gpus: int = 0  # that it requires
    enough: bool = False
    module: str = ""  # that it requires
    killed: str = ""

    @property
    def name(self) -> str:
        return f"{self.path} {self.arguments}".strip()


NEEDS = ("torchvision", "accelerate", "tf_keras", "scikit-learn", "lightning")
SCRIPTS = "accelerate/test_utils/scripts"
EXAMPLES = (
    Example(
        "horovod", "examples/pytorch/pytorch_mnist.py", "Test set: Average loss",
        "--no-cuda --epochs 2", NOISE,
    ),
    Example(
        "horovod", "examples/pytorch/pytorch_synthetic_benchmark.py", "Total img/sec on 2",
        "--no-cuda --model resnet18 --batch-size 2 --num-warmup-batches 1 "
        "--num-batches-per-iter 2 --num-iters 2",
        VISION,
    ),
    Example(
        "horovod", "examples/adasum/adasum_small_model.py", "Adasum 0.1 2",
        "--op Adasum",
    ),
    Example(
        "horovod", "examples/tensorflow2/tensorflow2_mnist.py", "Step #20", "", DIGITS,
        enough=True,
    ),
    Example(
        "horovod", "examples/tensorflow2/tensorflow2_keras_mnist.py", "Epoch 2/24", "", DIGITS,
        enough=True,
    ),
    Example(
        "horovod", "examples/tensorflow2/tensorflow2_synthetic_benchmark.py", "Total img/sec on 2",
        "--no-cuda --model MobileNetV2 --batch-size 2 --num-warmup-batches 1 "
        "--num-batches-per-iter 2 --num-iters 2",
    ),
    Example(
        "horovod", "examples/tensorflow2/tensorflow2_keras_synthetic_benchmark.py",
        "Total img/sec on 2",
        "--no-cuda --model MobileNetV2 --batch-size 2 --num-batches-per-iter 2 --num-iters 2",
    ),
    Example(
        "horovod", "examples/elastic/pytorch/pytorch_synthetic_benchmark_elastic.py",
        "Total img/sec on 2",
        "--no-cuda --model resnet18 --batch-size 2 --num-warmup-batches 1 "
        "--num-batches-per-iter 2 --num-iters 9",
        VISION, killed="Iter #0",
    ),
    Example(
        "horovod", "examples/elastic/pytorch/pytorch_mnist_elastic.py", "Test set: Average loss",
        "--no-cuda --epochs 40 --log-interval 1", NOISE, killed="Train Epoch: 2",
    ),
    Example(
        "horovod", "examples/elastic/tensorflow2/tensorflow2_mnist_elastic.py", "Step #40", "",
        DIGITS, killed="Step #10",
    ),
    Example(
        "horovod", "examples/elastic/tensorflow2/tensorflow2_keras_mnist_elastic.py", "Epoch 2/",
        "", DIGITS, enough=True, killed="Epoch 1/24",
    ),
    # None of its ranks is killed: it averages gradients before hvd.elastic.run, which a restarted
    # rank would do alone.
    Example(
        "horovod", "examples/elastic/tensorflow2/tensorflow2_synthetic_benchmark_elastic.py",
        "Total img/sec on 2",
        "--no-cuda --model MobileNetV2 --batch-size 2 --num-warmup-batches 1 "
        "--num-batches-per-iter 2 --num-iters 2",
    ),
    Example("torch", "distributed/ddp/example.py", "training completed in rank 1!", gpus=2),
    Example("torch", "distributed/FSDP2/example.py", "(output): ", gpus=2),
    Example(
        "torch", "distributed/ddp-tutorial-series/multigpu_torchrun.py", "Epoch 1 |", "2 1", gpus=2,
    ),
    Example(
        "torch", "distributed/tensor_parallelism/tensor_parallel_example.py",
        "Tensor Parallel training completed!", gpus=2,
    ),
    Example(
        "torch", "distributed/tensor_parallelism/fsdp_tp_example.py",
        "2D training successfully completed!", gpus=4,
    ),
    Example("", f"{SCRIPTS}/test_script.py", "Test reinstantiated state"),
    Example("", f"{SCRIPTS}/test_sync.py", "gradient accumulation with optimizer and scheduler"),
    Example("", f"{SCRIPTS}/test_distributed_data_loop.py", "sampler as an instance of", gpus=2),
    Example("", f"{SCRIPTS}/test_ops.py", "testing sending tensors across devices"),
    Example(
        "deepspeed", "training/cifar/cifar10_deepspeed.py", "Accuracy of truck",
        "--epochs 1 --dtype fp32 --log-interval 2", NOISE, module="deepspeed",
    ),
    Example(
        "deepspeed",
        "training/data_efficiency/variable_batch_size_and_lr/"
        "variable_batch_size_and_lr_example.py",
        "epoch 1, batch", module="deepspeed",
    ),
    Example(
        "lightning", "examples/pytorch/bug_report/bug_report_model.py", "test_loss", "",
        VISION + variables("PL_TRAINER", devices=2, accelerator="cpu"),
    ),
    Example(
        "lightning", "examples/fabric/image_classifier/train_fabric.py", "Test set: Average loss",
        "--epochs 2 --batch-size 8",
        NOISE + variables("LT", cli_used=1, devices=2, accelerator="cpu", strategy="ddp")
        + "__file__ = 'train_fabric.py'\n",
    ),
    Example(
        "keras", "guides/distributed_training_with_tensorflow.py", "Number of devices",
        before=DIGITS,
    ),
    Example("keras", "guides/distributed_training_with_torch.py", "Epoch 2/2", "", DIGITS, gpus=2),
    Example("keras", "examples/demo_torch_multi_gpu.py", "Epoch [1/1]", "", DIGITS, gpus=2),
    Example(
        "tensorflow", "site/en/tutorials/distribute/multi_worker_with_ctl.ipynb", "Epoch: 2",
        before=LEGACY + DIGITS,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """The result of an example: why it failed, empty if it succeeded."""

    example: Example
    why: str = ""
    seconds: float = 0.0
    tried: bool = True


def tried(example: Example, root: Path, scratch: Path, ranks: int = 2) -> Trial:
    """Run an example of the repository at `root` in a copy of its folder below `scratch`."""
    if missing := _missing(example):
        return Trial(example, missing, tried=False)
    folder = scratch / "example"
    sources = _sources(root / example.path)
    folder.mkdir()
    for name, source in sources.items():
        (folder / name).write_text(source)
    begun = time.monotonic()
    cluster = Cluster.local(
        ranks=ranks, cwd=str(folder), preload="none", auto_restart=bool(example.killed)
    )
    try:
        before, source = _begin(example, folder), sources[_main(example)]
        if example.killed:
            before, source = "", f"{before}\n{source}"
        first = cluster.run(before)
        if not first.wait(LIMIT_S) or first.state != "done":
            return Trial(example, f"before it: {_failure(first)}", time.monotonic() - begun)
        run = cluster.run(source, name=Path(example.path).name)
        why = _killed(run, cluster.store, example) or _followed(run, cluster.store, example)
    finally:
        cluster.stop()
    return Trial(example, why, time.monotonic() - begun)


def _missing(example: Example) -> str:
    """Return what this machine lacks for an example; empty if nothing."""
    import torch

    if example.module and find_spec(example.module) is None:
        return f"{example.module} is not installed"
    if torch.cuda.device_count() < example.gpus:
        return f"demands {example.gpus} GPUs"
    return ""


def _sources(path: Path) -> dict[str, str]:
    """Return the Python files in an example's folder by name, or those that a notebook writes."""
    if path.suffix == ".py":
        return {each.name: each.read_text() for each in sorted(path.parent.glob("*.py"))}
    found = {}
    for cell in json.loads(path.read_text())["cells"]:
        first, _, rest = "".join(cell["source"]).partition("\n")
        if first.startswith("%%writefile "):
            found[first.split()[1]] = rest
    return found


def _main(example: Example) -> str:
    path = Path(example.path)
    return path.name if path.suffix == ".py" else "main.py"


def _begin(example: Example, folder: Path) -> str:
    """Return the cell that runs before an example."""
    path = [str(folder), str(packages(NEEDS))]
    words = [_main(example), *shlex.split(example.arguments)]
    return f"import sys\nsys.path += {path}\nsys.argv = {words}\n{example.before}"


def _killed(run: Run, store: Store, example: Example) -> str:
    """Kill the last rank at the words `killed`, and wait for it to rejoin; return why it failed."""
    if not example.killed:
        return ""
    until = time.monotonic() + LIMIT_S
    while not _says(run, store, example.killed):
        if run.wait(LOOK_S) or time.monotonic() > until:
            return f"no {example.killed!r} after which a rank could be killed: {_failure(run)}"
    os.kill(run.info.ranks[-1].pid, signal.SIGKILL)
    while not _says(run, store, "continues from the last commit"):
        if run.wait(LOOK_S) or time.monotonic() > until:
            return f"the rank that was killed did not come back: {_failure(run)}"
    return ""


def _followed(run: Run, store: Store, example: Example) -> str:
    """Wait for a run's end, or interrupt it when that is `enough`; return why it failed."""
    until = time.monotonic() + LIMIT_S
    while not run.wait(LOOK_S):
        enough = example.enough and _says(run, store, example.words)
        if enough or time.monotonic() > until:
            run.interrupt()
            run.wait(END_S)
            return "" if enough and run.state == "interrupted" else f"not over after {LIMIT_S} s"
    if run.state != "done":
        return _failure(run)
    return "" if _says(run, store, example.words) else f"ended without {example.words!r}"


def _says(run: Run, store: Store, words: str) -> bool:
    logs = (event for event in store.events(run.id) if event["kind"] == "log")
    return words in "".join(str(log["text"]) for log in logs)


def _failure(run: Run) -> str:
    first = run.info.failure
    if first is None:
        return run.state
    lines = first.evalue.strip().splitlines() or [""]
    # The first line of some errors says only where they occurred.
    line = lines[-1].strip() if lines[0].endswith(":") else lines[0]
    return f"{first.ename}: {line}" if line else first.ename


def chosen(words: Sequence[str]) -> list[Example]:
    """Return the examples of these repositories, or with these words in their path; or all."""
    return [
        each
        for each in EXAMPLES
        if not words or each.repository in words or any(word in each.path for word in words)
    ]
