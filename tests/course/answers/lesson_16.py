"""Lab on a compute node."""

from lesson_runner import Played

WRONG = {
    "shared.1": [
        (
            "def tunnel(here, node, port, login):\n    return f'ssh -L {port}:{node}:{here} {login}'",
            "it should be",
        ),
        # Binds all addresses: everybody who reaches this machine reaches the server.
        (
            "def tunnel(here, node, port, login):\n"
            "    return f'ssh -L 0.0.0.0:{here}:{node}:{port} {login}'",
            "it should be",
        ),
    ],
    "shared.2": [
        (
            "def is_unsafe(line):\n    return '127.0.0.1' not in line or '$USER' in line",
            "is not safe|is safe",
        ),
        (
            "def is_unsafe(line):\n    return '--ip=127.0.0.1' not in line or 'token' in line",
            "is safe",
        ),
        # A list of known mistakes is never complete.
        (
            "def is_unsafe(line):\n    return '0.0.0.0' in line or 'token' in line",
            "is not safe",
        ),
        (
            "def is_unsafe(line):\n    listens = '--ip' in line and '--ip=127.0.0.1' not in line\n"
            "    return listens or 'token' in line",
            "ServerApp",
        ),
    ],
    "shared.3": [
        (
            "import secrets\n\n\ndef write_secret(path):\n    path.write_text(secrets.token_urlsafe())",
            "others may read",
        ),
        (
            "import secrets\n\n\ndef write_secret(path):\n    path.write_text(secrets.token_urlsafe())\n"
            "    path.chmod(0o600)",
            "others could read it for a moment",
        ),
        (
            "import os, secrets\n\n\ndef write_secret(path):\n    with open(path, 'w') as file:\n"
            "        file.write(secrets.token_urlsafe())\n        os.fchmod(file.fileno(), 0o600)",
            "others could read it for a moment",
        ),
        (
            "import secrets, subprocess\n\n\ndef write_secret(path):\n    path.write_text(secrets.token_urlsafe())\n"
            "    subprocess.run(['chmod', '600', path])",
            "others could read it for a moment",
        ),
        (
            "import os\n\n\ndef write_secret(path):\n    number = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)\n"
            "    with os.fdopen(number, 'w') as file:\n        file.write('a very long secret that never changes')",
            "same token",
        ),
        (
            "import os, random, string\n\n\ndef write_secret(path):\n    os.umask(0o077)\n"
            "    path.write_text(''.join(random.choices(string.ascii_letters, k=40)))",
            "comes from `random`",
        ),
        *(
            (
                "import hashlib, os, time\nimport numpy as np\n\n\ndef write_secret(path):\n"
                f"    os.umask(0o077)\n    known = {known}\n"
                "    path.write_text(hashlib.sha256(str(known).encode()).hexdigest())",
                "which others can work out",
            )
            for known in ("time.time()", "time.time_ns()", "path", "np.random.randint(10**18)")
        ),
    ],
}

RIGHT = {
    "shared.1": [
        "def tunnel(here, node, port, login):\n    return f'ssh -N -L {here}:{node}:{port} {login}'",
        "def tunnel(here, node, port, login):\n    return f'ssh -fN -L{here}:{node}:{port} {login}'",
        "def tunnel(here, node, port, login):\n    return f'ssh {login} -L {here}:{node}:{port}'",
        "def tunnel(here, node, port, login):\n"
        "    return f'ssh -NL 127.0.0.1:{here}:{node}:{port} {login}'",
    ],
    "shared.3": [
        "import os, secrets\n\n\ndef write_secret(path):\n    os.umask(0o077)\n"
        "    path.write_text(secrets.token_urlsafe())\n    path.chmod(0o600)",
        "import os, uuid\n\n\ndef write_secret(path):\n    os.umask(0o077)\n"
        "    path.write_text(str(uuid.uuid4()))",
    ],
}


def claims(played: Played) -> None:
    assert "#SBATCH" in played.text("dry") and "02:00:00" in played.text("dry")
    said = played.text("clear")
    assert "0.0.0.0        is not in the script" in said
    assert "token_urlsafe  is in the script" in said
    modes = played.text("files")
    assert "drwx------" in modes and "-rw-------" in modes
