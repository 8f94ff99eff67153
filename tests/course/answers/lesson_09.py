"""TensorFlow's own strategies."""

import re

from lesson_runner import Played

WRONG = {
    "tfd.1": [
        ("def replica_loss(errors, global_batch):\n    return sum(errors)", "times the mean"),
        # Correct only for two replicas.
        (
            "def replica_loss(errors, global_batch):\n    return sum(errors) / (2 * len(errors))",
            "times the mean",
        ),
    ],
    "tfd.2": [
        ("def busiest(way, devices, length):\n    return 2 * (devices - 1) * length", "you predict")
    ],
    "tfd.4": [
        (
            "def right_loss():\n    return keras.losses.CategoricalCrossentropy(from_logits=True)",
            "the loss fails|the loss is",
        )
    ],
    "tfd.3": [
        (
            "def stale(gradient, start, steps, delay, rate):\n    weights = [start]\n    for step in range(steps):\n"
            "        weights.append(weights[-1] - rate * gradient(weights[-1 - delay] if delay < len(weights) else start))\n"
            "    return weights[1:]",
            "one more after each",
        )
    ],
}

RIGHT = {
    "tfd.1": [
        # A float32, as tf.nn.compute_average_loss returns.
        "import numpy\n\n\ndef replica_loss(errors, global_batch):\n"
        "    return numpy.float32(sum(errors) / global_batch)"
    ],
    "tfd.3": [
        "import numpy\n\n\ndef stale(gradient, start, steps, delay, rate):\n    weights = [start]\n"
        "    for step in range(steps):\n        old = weights[max(0, step - delay)]\n"
        "        weights.append(weights[-1] - rate * gradient(old))\n"
        "    return numpy.array(weights)"
    ],
}


def claims(played: Played) -> None:
    assert "21.0, 21.0" in played.text("scope")
    one, both = re.search(
        r"'one device': ([\d.]+), 'mirrored': ([\d.]+)", played.text("fit")
    ).groups()
    assert abs(float(one) - float(both)) < 0.02, played.text("fit")
    assert "True" in played.text("saved") and "False" not in played.text("saved")
    assert "for probabilities" in played.verdicts["tfd.4"][0][1]
    said = played.text("ways")
    assert "HierarchicalCopyAllReduce" in said and said.count("21.0, 21.0") >= 2
    assert re.search(r"\b2\b", played.text("many"))
    found = re.findall(
        r"'accuracy': ([\d.]+), 'sum of the weights': (-?[\d.]+)", played.text("step")
    )
    assert found and all(float(accuracy) > 0.85 for accuracy, _ in found)
    assert len({weights for _, weights in found}) == 1
    fresh, old, older = (
        float(n) for n in re.findall(r"mean accuracy ([\d.]+)", played.text("mean"))
    )
    assert fresh > old > older and fresh > 0.85
    assert "accuracy on the test images over step" in played.text("draw")
