"""A tf.distribute strategy on a simulated node with several GPUs."""

import pytest

from rankroom.rank.frameworks.tensorflow.tensorflow_adapter import keep_to_own_gpu


class Context:
    """The part of TensorFlow's context that determines a strategy's devices."""

    def __init__(self, gpus: int, is_in_use: bool = False) -> None:
        self.gpus = [f"GPU:{number}" for number in range(gpus)]
        self.visible = list(self.gpus)
        self.is_in_use = is_in_use

    def list_physical_devices(self, kind: str) -> list[str]:
        return self.gpus

    def get_visible_devices(self, kind: str) -> list[str]:
        return self.visible

    def set_visible_devices(self, devices: list[str], kind: str) -> None:
        if self.is_in_use:
            raise RuntimeError("Visible devices cannot be modified after being initialized")
        self.visible = devices


@pytest.mark.parametrize(
    ("gpus", "device", "visible"),
    [(4, "cuda:2", ["GPU:2"]), (1, "cuda:0", ["GPU:0"]), (2, "cpu", ["GPU:0", "GPU:1"])],
)
def test_a_strategy_has_the_ranks_own_gpu(gpus: int, device: str, visible: list[str]):
    context = Context(gpus)
    keep_to_own_gpu(context, device)
    assert context.visible == visible


def test_gpus_that_the_user_chose_stay():
    context = Context(4)
    context.set_visible_devices(["GPU:0", "GPU:1"], "GPU")
    keep_to_own_gpu(context, "cuda:3")
    assert context.visible == ["GPU:0", "GPU:1"]


def test_a_gpu_that_is_hidden_from_tensorflow_is_not_selected():
    context = Context(2)
    keep_to_own_gpu(context, "cuda:3")
    assert context.visible == ["GPU:0", "GPU:1"]


def test_a_warning_says_that_tensorflow_already_uses_all_gpus(capsys: pytest.CaptureFixture[str]):
    context = Context(4, is_in_use=True)
    keep_to_own_gpu(context, "cuda:1")
    assert "uses all 4 GPUs of the node" in capsys.readouterr().err
