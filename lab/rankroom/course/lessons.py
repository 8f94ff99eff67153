"""The lessons of the course: their order, how long they take, and what each needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rankroom.errors import UsageError


@dataclass(frozen=True)
class Lesson:
    """One notebook. `needs` are the packages that its cells import, as `name>=version` where older
    ones do not work; `ranks` is the smallest number of ranks on which it makes sense; `minutes` is
    how long it takes, by the rule in tests/course/reading_time.py; `fresh` is why it needs ranks
    that have not run anything yet, empty if it does not."""

    number: int
    file: str
    title: str
    minutes: int
    needs: tuple[str, ...] = ()
    ranks: int = 2
    fresh: str = ""

    @property
    def name(self) -> str:
        """Its number and title: `03 Ring all-reduce`."""
        return f"{self.number:02} {self.title}"


HVD_TORCH = ("torch", "horovod.torch")
HVD_TENSORFLOW = ("tensorflow", "horovod.tensorflow")
LESSONS = (
    Lesson(0, "00_start_here.ipynb", "Start here", 10, ranks=1),
    Lesson(1, "01_hello_ranks.ipynb", "Hello, ranks", 15, ranks=2),
    Lesson(2, "02_collectives.ipynb", "Collectives", 20, ("torch",)),
    Lesson(3, "03_ring_allreduce.ipynb", "Ring all-reduce", 20, ("torch",)),
    Lesson(
        4,
        "04_horovod_pytorch.ipynb",
        "Horovod and PyTorch",
        20,
        (*HVD_TORCH, "sklearn"),
        fresh="it shows what happens before hvd.init()",
    ),
    Lesson(5, "05_tensorflow.ipynb", "Horovod and TensorFlow", 15, (*HVD_TENSORFLOW, "sklearn")),
    Lesson(6, "06_keras.ipynb", "Horovod and Keras", 15, (*HVD_TENSORFLOW, "sklearn")),
    Lesson(7, "07_ddp.ipynb", "PyTorch's DDP", 15, ("torch", "sklearn")),
    Lesson(8, "08_deepspeed.ipynb", "DeepSpeed", 15, ("torch", "deepspeed")),
    Lesson(
        9,
        "09_tf_distribute.ipynb",
        "tf.distribute",
        25,
        ("tensorflow", "sklearn"),
        fresh="TensorFlow can be given its devices only once",
    ),
    Lesson(10, "10_large_batches.ipynb", "Large batches", 15, (*HVD_TORCH, "sklearn")),
    Lesson(
        11,
        "11_scaling.ipynb",
        "Scaling",
        20,
        ("torch", "sklearn"),
        fresh="a strategy of TensorFlow's would have connected them for good",
    ),
    Lesson(12, "12_find_the_straggler.ipynb", "Find the straggler", 15, (*HVD_TORCH, "sklearn")),
    Lesson(13, "13_feeding.ipynb", "Feeding the ranks", 15, ("torch",)),
    Lesson(14, "14_model_parallelism.ipynb", "Model parallelism", 25, ("torch>=2.6",)),
    Lesson(15, "15_notebook_to_batch.ipynb", "From notebook to batch", 15, ranks=1),
    Lesson(16, "16_lab_on_a_node.ipynb", "Lab on a compute node", 15, ranks=1),
    Lesson(
        17,
        "17_leave_the_notebook.ipynb",
        "Leave the notebook",
        15,
        (*HVD_TORCH, "sklearn"),
        ranks=1,
    ),
    Lesson(
        18,
        "18_checkpoint_and_resume.ipynb",
        "Checkpoint and resume",
        20,
        ("torch>=2.6", "horovod.torch", "sklearn"),
    ),
    Lesson(19, "19_half_the_bits.ipynb", "Half the bits", 15, (*HVD_TORCH, "sklearn")),
    Lesson(20, "20_capstone.ipynb", "Capstone", 60, (*HVD_TORCH, "sklearn")),
)


def lesson(number: int) -> Lesson:
    """Return the lesson of that number. Raises UsageError with the valid numbers."""
    for each in LESSONS:
        if each.number == number:
            return each
    there = f"{LESSONS[0].number} to {LESSONS[-1].number}"
    raise UsageError(f"there is no lesson {number}: the course has lessons {there}")


def folder() -> Path:
    """Return the folder of the notebooks: in the package if it was installed, else in the checkout.
    Raises UsageError if they are in neither."""
    for base in (Path(__file__).parents[1], Path(__file__).parents[3]):
        found = base / "notebooks"
        if (found / LESSONS[0].file).is_file():
            return found
    raise UsageError("the notebooks of the course are not installed here")
