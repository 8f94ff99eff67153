"""From notebook to batch."""

import re

from lesson_runner import Played

_ASKS = (
    'def asks(node, tasks, cpus):\n    return f"""#SBATCH --ntasks-per-node={tasks}\n'
    '#SBATCH --cpus-per-task={cpus}\n#SBATCH %s\n"""'
)
_HEADER = (
    'def header(nodes, gpus, hours):\n    return f"""%s#!/bin/bash\n%s#SBATCH --nodes={nodes}\n'
    "#SBATCH --gpus-per-node={gpus}\n#SBATCH --ntasks-per-node={gpus}\n"
    '#SBATCH --time={hours:02}:00:00\n"""'
)
_TRAIN = (
    "import os, shutil, tempfile\n\n\ndef train(epoch, last, path):\n"
    "    first = int(path.read_text()) if path.exists() else 0\n"
    "    for number in range(first, last):\n%s"
)
WRONG = {
    "batch.1": [
        (
            'def header(nodes, gpus, hours):\n    return f"#!/bin/bash\\n#SBATCH --nodes={nodes}\\n#SBATCH --gpus-per-node={gpus}\\n'
            '#SBATCH --ntasks-per-node={nodes * gpus * 10}\\n#SBATCH --time={hours:02}:00:00\\n"',
            "one rank for each GPU",
        ),
        # Looks right, but Slurm rejects the script or ignores its #SBATCH lines.
        (_HEADER % ("\n", ""), "the first line of a script is #!/bin/bash"),
        (_HEADER % ("", "    "), "Slurm reads #SBATCH at the start of a line only"),
        (_HEADER % ("", "module load cuda\n"), "lines after the first command"),
    ],
    "batch.2": [
        (_ASKS % "--mem={node}\n#SBATCH --mem-per-cpu={node // (tasks * cpus)}", "both are there"),
        (_ASKS % "--mem-per-cpu={node // cpus}", "never starts"),
        (_ASKS % "--mem-per-cpu={node // (tasks * cpus) // 2}", "unused"),
        (_ASKS % "--exclusive=user", "none is left"),
    ],
    "batch.3": [
        (
            "def train(epoch, last, path):\n    first = int(path.read_text()) if path.exists() else 0\n"
            "    for number in range(first, last):\n        path.write_text(str(number))\n        epoch(number + 0 * first)\n"
            "    path.unlink()\n    epoch(last)",
            "each once",
        ),
        (
            "def train(epoch, last, path):\n    try:\n        for number in range(last):\n            epoch(number)\n"
            "    finally:\n        path.write_text('0')",
            "each once",
        ),
        (
            "def train(epoch, last, path):\n    first = int(path.read_text()) if path.exists() else 0\n"
            "    for number in range(first, last):\n        epoch(number)\n"
            "        path.unlink(missing_ok=True)\n        path.write_text(str(number + 1))",
            "taken away before the new one has its name",
        ),
        # A job that is killed while it writes leaves half a number.
        (
            "def train(epoch, last, path):\n    first = int(path.read_text()) if path.exists() else 0\n"
            "    for number in range(first, last):\n        epoch(number)\n        path.write_text(str(number + 1))",
            "written over",
        ),
        # Works here, where /tmp and the checkpoint share a file system; on a node they do not.
        (
            _TRAIN % "        epoch(number)\n"
            "        with tempfile.NamedTemporaryFile('w', delete=False) as file:\n"
            "            file.write(str(number + 1))\n        os.replace(file.name, path)",
            "made in another folder",
        ),
        (
            _TRAIN % "        fresh = path.with_suffix('.new')\n"
            "        fresh.write_text(str(number))\n        fresh.replace(path)\n"
            "        epoch(number)",
            "ran epoch",
        ),
    ],
}


RIGHT = {"batch.2": [_ASKS % "--mem={node}M", _ASKS % "--mem=0"]}


def claims(played: Played) -> None:
    said = played.text("dry")
    assert "#SBATCH --nodes=2" in said and "02:00:00" in said
    assert "conda activate" in said and "GLOO_SOCKET" in said
    assert int(re.search(r"(\d+) lines in all", played.text("clear"))[1]) > 50
    assert "5952 MB" in played.text("taurus") and "2500 MB" in played.text("taurus")
    assert "[X] PyTorch" in played.text("build")
    assert "True" in played.text("left")
