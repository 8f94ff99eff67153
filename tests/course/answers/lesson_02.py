"""Collectives."""

from lesson_runner import Played

WRONG = {
    "collectives.1": [
        ("def mean_of_all(values):\n    return sum(values) / max(len(values), 1)", "the mean is")
    ],
    "collectives.2": [("def best(loss):\n    return 0", "has the smallest loss")],
    "collectives.3": [
        (
            "def columns(row, width):\n    blocks = torch.zeros_like(row)\n"
            "    dist.all_to_all_single(blocks, row)\n    return blocks",
            "should give a tensor of shape",
        ),
        (
            "def columns(row, width):\n    blocks = torch.zeros_like(row)\n"
            "    dist.all_to_all_single(blocks, row)\n"
            "    return blocks.reshape(size, width).cpu().numpy()",
            "gives ndarray",
        ),
    ],
    "collectives.4": [
        (
            "def report(loss):\n    total = torch.tensor([loss], dtype=torch.float64)\n"
            "    dist.all_reduce(total)\n    return total.item() / size",
            "should return None",
        )
    ],
}


def after(played: Played, cell: str) -> list[str]:
    """Return each rank's values after a collective, as the figure lists them."""
    lines = played.text(cell).splitlines()
    return [line.partition("→")[2].strip() for line in lines if line.startswith("rank ")]


def claims(played: Played) -> None:
    assert after(played, "broadcast-see") == ["10 11", "10 11"]
    assert after(played, "reduce-see") == ["30 32", "–"]
    assert after(played, "allreduce-see") == ["30 32", "30 32"]
    assert after(played, "scatter-see") == ["10", "11"]
    assert after(played, "gather-see") == ["10 20", "–"]
    assert after(played, "allgather-see") == ["10 20", "10 20"]
    assert after(played, "reducescatter-see") == ["30", "32"]
    assert after(played, "alltoall-see") == ["10 20", "11 21"]
    assert "hung" not in played.verdicts["collectives.1"][0][1]
    start = played.verdicts["collectives.4"][0][1]
    assert "wait for one another" in start and "all_reduce" in start
    said = played.text("hang-see")
    assert "the run was stuck" in said and "rank 0 waits in" in said and "all_reduce" in said
