"""Ring all-reduce."""

from lesson_runner import Played

WRONG = {
    "ring.1": [("def neighbours(rank, size):\n    return (rank - 1) % size, (rank + 1) % size", "sends to rank")],
    "ring.2": [
        (
            "def reduce_scatter(chunks):\n    whole = torch.cat(chunks)\n    dist.all_reduce(whole)\n"
            "    chunks[:] = whole.chunk(size)",
            "not the library's own collectives",
        ),
        (
            "def reduce_scatter(chunks):\n    for place, chunk in enumerate(chunks):\n"
            "        dist.reduce(chunk, dst=(place - 1) % size)",
            "not the library's own collectives",
        ),
        (
            "def reduce_scatter(chunks):\n    for step in range(size - 1):\n"
            "        out = chunks[(rank - step) % size]\n"
            "        own = chunks[(rank - step - 1) % size]\n"
            "        into = torch.empty_like(own)\n        pass_on(out, into)\n        own.copy_(into)",
            "the sum of all ranks",
        ),
        (
            "def reduce_scatter(chunks):\n    for step in range(size - 1):\n"
            "        into = torch.empty_like(chunks[0])\n"
            "        pass_on(chunks[(rank - step) % size], into)\n"
            "        own = (rank - step - 1) % size\n        chunks[own] = chunks[own] + into",
            "was replaced by another tensor",
        ),
    ],
    "ring.3": [
        (
            "def all_gather(chunks):\n    for step in range(size - 1):\n"
            "        out = chunks[(rank - step) % size]\n"
            "        own = chunks[(rank - step - 1) % size]\n"
            "        into = torch.empty_like(own)\n        pass_on(out, into)\n        own.copy_(into)",
            "does not have chunk",
        ),
        (
            "def all_gather(chunks):\n    for step in range(size - 1):\n"
            "        into = torch.empty_like(chunks[0])\n"
            "        pass_on(chunks[(rank + 1 - step) % size], into)\n"
            "        chunks[(rank - step) % size] = into",
            "was replaced by another tensor",
        ),
    ],
    "ring.4": [
        ("def bytes_sent(length, ranks):\n    return (ranks - 1) * length / ranks", "in your ring"),
        # Correct only on two ranks.
        ("def bytes_sent(length, ranks):\n    return length", "each sends|in your ring"),
    ],
}  # fmt: skip


RIGHT = {
    "ring.2": [
        "def reduce_scatter(chunks):\n    following, before = neighbours(rank, size)\n"
        "    for step in range(size - 1):\n        own = chunks[(rank - step - 1) % size]\n"
        "        into = torch.empty_like(own)\n"
        "        ops = [dist.P2POp(dist.isend, chunks[(rank - step) % size], following),\n"
        "               dist.P2POp(dist.irecv, into, before)]\n"
        "        for work in dist.batch_isend_irecv(ops):\n            work.wait()\n"
        "        own += into",
    ],
    "ring.4": [
        "def bytes_sent(length, ranks):\n    return round(2 * length - 2 * length / ranks)",
        # Messages that are sent without `pass_on` are counted as well.
        "def reduce_scatter(chunks):\n    following, before = neighbours(rank, size)\n"
        "    for step in range(size - 1):\n        own = chunks[(rank - step - 1) % size]\n"
        "        into = torch.empty_like(own)\n"
        "        ops = [dist.P2POp(dist.isend, chunks[(rank - step) % size], following),\n"
        "               dist.P2POp(dist.irecv, into, before)]\n"
        "        for work in dist.batch_isend_irecv(ops):\n            work.wait()\n"
        "        own += into\n\n\n"
        "def bytes_sent(length, ranks):\n    return 2 * (ranks - 1) * length / ranks",
    ],
}


def claims(played: Played) -> None:
    assert "[30.0, 32.0, 34.0, 36.0]" in played.text("naive")
    assert "20.0" in played.text("step") and "10.0" in played.text("step")
    assert "True" in played.text("whole") and "False" not in played.text("whole")
    factors = played.text("factor").splitlines()
    assert "2 ranks: ring 1.00" in factors[0] and "1024 ranks: ring 2.00" in factors[-2]
    assert "bus bandwidth in MB/s over message in bytes" in played.text("curve")
    # For small messages latency dominates: time grows by far less than size.
    said = played.text("latency").replace(",", "")
    more, longer = (float(word) for word in said.split() if word[0].isdigit())
    assert longer < more / 4
