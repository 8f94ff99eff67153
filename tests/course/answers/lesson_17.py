"""Leave the notebook."""

import re

from lesson_runner import Played

WRONG = {
    "script.1": [
        (
            "def who(env):\n"
            "    for names in (('SLURM_PROCID', 'SLURM_NTASKS', 'SLURM_LOCALID'),\n"
            "                  ('RANK', 'WORLD_SIZE', 'LOCAL_RANK')):\n"
            "        if names[0] in env:\n"
            "            return tuple(int(env[name]) for name in names)\n"
            "    return 0, 1, 0",
            "in a job of Slurm's",
        ),
        # Prefers Slurm's variables: within a job, ranks of other launchers inherit those of the
        # job script, which is a single task.
        (
            "def who(env):\n"
            "    slurm = ('SLURM_PROCID', 'SLURM_NTASKS', 'SLURM_LOCALID')\n"
            "    if int(env.get('SLURM_NTASKS', 1)) > 1:\n"
            "        return tuple(int(env[name]) for name in slurm)\n"
            "    for one in ('', 'HOROVOD_', 'OMPI_COMM_WORLD_'):\n"
            "        names = f'{one}RANK', f'{one}SIZE' if one else 'WORLD_SIZE', f'{one}LOCAL_RANK'\n"
            "        if names[0] in env:\n"
            "            return tuple(int(env[name]) for name in names)\n"
            "    return 0, 1, 0",
            "in a job of Slurm's",
        ),
    ],
    "script.2": [
        (
            "def command(launcher, nodes, gpus):\n"
            "    return f'{launcher} --nodes={nodes} --ntasks-per-node={gpus} python train.py'",
            "starts Python by itself",
        ),
        (
            "def command(launcher, nodes, gpus):\n"
            "    return f'{launcher} --nodes={nodes} --ntasks-per-node={gpus} train.py'",
            "starts any program",
        ),
        # srun: requests as many nodes as ranks, and as many ranks as a node has GPUs.
        (
            "def command(launcher, nodes, gpus):\n    return {\n"
            "        'srun': f'srun -N {nodes * gpus} -n {gpus} python train.py',\n"
            "        'torchrun': f'torchrun --nnodes {nodes} --nproc_per_node {gpus} train.py',\n"
            "        'horovodrun': f'horovodrun -np {nodes * gpus} python train.py',\n"
            "    }[launcher]",
            "should have `--nodes=",
        ),
        # horovodrun: starts only as many ranks as one node has GPUs.
        (
            "def command(launcher, nodes, gpus):\n    return {\n"
            "        'srun': f'srun -N {nodes} --ntasks-per-node={gpus} python train.py',\n"
            "        'torchrun': f'torchrun --nnodes={nodes} --nproc-per-node={gpus} train.py',\n"
            "        'horovodrun': f'horovodrun -np {gpus} python train.py',\n"
            "    }[launcher]",
            "should have `-np ",
        ),
    ],
    "script.3": [
        ("def goes_on(state):\n    return state in ('PD', 'R')", "may still do something")
    ],
}

RIGHT = {
    "script.1": [
        "def who(env):\n"
        "    for one in ('', 'HOROVOD_', 'OMPI_COMM_WORLD_'):\n"
        "        names = f'{one}RANK', f'{one}SIZE' if one else 'WORLD_SIZE', f'{one}LOCAL_RANK'\n"
        "        if names[0] in env:\n"
        "            return [int(env[name]) for name in names]\n"
        "    slurm = ('SLURM_PROCID', 'SLURM_NTASKS', 'SLURM_LOCALID')\n"
        "    return [int(env.get(name, no)) for name, no in zip(slurm, (0, 1, 0))]",
    ],
    "script.2": [
        "def command(launcher, nodes, gpus):\n    return {\n"
        "        'srun': f'srun --nodes={nodes} --ntasks-per-node={gpus} python3 train.py',\n"
        "        'torchrun': f'torchrun --nnodes={nodes} --nproc-per-node={gpus} train.py',\n"
        "        'horovodrun': f'horovodrun -np {nodes * gpus} /usr/bin/python3.11 train.py',\n"
        "    }[launcher]",
        "def command(launcher, nodes, gpus):\n    return {\n"
        "        'srun': f'srun -N {nodes} --ntasks-per-node {gpus} python -u train.py',\n"
        "        'torchrun': f'torchrun --nnodes {nodes} --nproc_per_node={gpus} train.py',\n"
        "        'horovodrun': f'horovodrun --num-proc {nodes * gpus} python train.py',\n"
        "    }[launcher]",
        "def command(launcher, nodes, gpus):\n    return {\n"
        "        'srun': f'srun -n {nodes * gpus} python train.py',\n"
        "        'torchrun': f'torchrun --nnodes={nodes} --nproc-per-node gpu train.py',\n"
        "        'horovodrun': f'horovodrun -np {nodes * gpus} python train.py',\n"
        "    }[launcher]",
        "def command(launcher, nodes, gpus):\n    return {\n"
        "        'srun': f'srun -N{nodes} -n{nodes * gpus} python train.py',\n"
        "        'torchrun': f'torchrun --nproc-per-node={gpus} --nnodes={nodes} train.py',\n"
        "        'horovodrun': f'horovodrun -np {nodes * gpus} python train.py',\n"
        "    }[launcher]",
    ],
}


def claims(played: Played) -> None:
    for cell in ("horovodrun", "rankroom"):
        losses = re.findall(r"epoch \d on 2 × \w+: loss ([\d.]+)", played.text(cell))
        assert len(losses) == 3 and float(losses[-1]) < float(losses[0]), played.text(cell)
    assert "epoch 0 on 2 × " in played.text("timeline")
    shown = played.text("timeline").split("epoch 0")[1]
    assert "timeline.json.rank1" in shown and re.search(r"rank [01]\b", shown), shown
    written = {"train.py", "model.pt", "timeline.json", "timeline.json.rank1"}
    assert written <= set(played.text("tidy").split())
