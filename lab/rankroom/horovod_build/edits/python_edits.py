"""Edits of Horovod's Python files: for Keras 3, and for what newer Pythons no longer have.

They are applied to the compiled wheel, so that changing one of them needs no compilation.
"""

from __future__ import annotations

from rankroom.horovod_build.edits.edit import Addition, Change, Edit, added
from rankroom.horovod_build.edits.keras_edits import KERAS

TF = "horovod/tensorflow/"

PYTHON = (
    Edit(
        "which",
        "horovod/runner/js_run.py",
        "from distutils.spawn import find_executable",
        "from shutil import which as find_executable",
        "Python 3.12 has no distutils",
    ),
    added(
        "cpu-refuses",
        "horovod/torch/mpi_ops.py",
        """\
        if tensor.device.type == 'cuda' and not cuda_built():
            raise ValueError('This Horovod is built for the CPU, and was given a tensor on a GPU: '
                             'build it for GPUs (`rankroom horovod build --gpu`), or move the '
                             'tensor (`tensor.cpu()`).')
""",
        "a Horovod built for the CPU only said that the tensor's type is not supported",
        after="    if not hasattr(mpi_lib, function):\n",
    ),
    Edit(
        "zero-grad-arguments",
        "horovod/torch/optimizer.py",
        "    def zero_grad(self):\n",
        "    def zero_grad(self, *args, **kwargs):\n",
        "zero_grad(set_to_none=True), as PyTorch has it, was a TypeError",
        count=2,
    ),
    Edit(
        "zero-grad-arguments-pass",
        "horovod/torch/optimizer.py",
        "super(self.__class__, self).zero_grad()\n",
        "super(self.__class__, self).zero_grad(*args, **kwargs)\n",
        "hands on what the edit above takes",
        count=2,
    ),
)

SERVER = "horovod/runner/http/http_server.py"
RENDEZVOUS = (
    Edit(
        "server-finished",
        SERVER,
        "                        self.server.finished_list.clear()\n",
        "                        self.server.finished_list[scope].clear()\n",
        "ranks that were done with one of three stores made the server forget who was done with "
        "the others: the next hvd.init() found old addresses there, and failed",
    ),
    added(
        "server-both-keys",
        SERVER,
        "                        scope_dict.pop('to_' + key, None)\n",
        "what rank 0 writes for a rank (mesh_context.h) is as old as what the rank wrote itself",
        after="                        del scope_dict[key]\n",
    ),
    added(
        "server-queue",
        SERVER,
        "    request_queue_size = socket.SOMAXCONN\n\n",
        "connections beyond five were dropped, and tried again after seconds",
        after="class RendezvousHTTPServer(socketserver.ThreadingMixIn, HTTPServer, object):\n",
    ),
)

VARIABLES = (
    Edit(
        "names-without-numbers",
        TF + "mpi_ops.py",
        "    return re.sub('[^a-zA-Z0-9_]', '_', name)\n",
        """\
    # Names that differ in their numbers only are numbered again by the graph, in its own order.
    return re.sub('_[0-9]+(?=_|$)', '', re.sub('[^a-zA-Z0-9_]', '_', name))
""",
        "Keras counts the layers and optimizers that a process has made: where one rank had made "
        "more of them, in a cell of its own or one that failed, collectives got other names on "
        "each rank, and all waited for ever",
    ),
    Addition(
        "scopes-without-numbers",
        TF + "unnumbered_scopes.py",
        "unnumbered_scopes.py",
        "and so it was in layers: an operation's name begins with those of its model and layer",
    ),
    Edit(
        "scopes-without-numbers-load",
        TF + "mpi_ops.py",
        "    MPI_LIB = _load_library('mpi_lib' + get_ext_suffix())\n",
        "    MPI_LIB = Unnumbered(_load_library('mpi_lib' + get_ext_suffix()))\n",
        "makes operations within these scopes",
    ),
    added(
        "scopes-without-numbers-import",
        TF + "mpi_ops.py",
        "from horovod.tensorflow.unnumbered_scopes import Unnumbered\n",
        "the edit above uses it",
        after="from horovod.tensorflow.util import _executing_eagerly\n",
    ),
    Edit(
        "session-hook",
        TF + "__init__.py",
        "        _SessionRunHook = tf.train.SessionRunHook\n",
        "        _SessionRunHook = tf.compat.v1.train.SessionRunHook\n",
        "without tf.estimator, which TensorFlow 2.16 no longer has, there was no "
        "BroadcastGlobalVariablesHook",
    ),
    added(
        "keras3-variable",
        TF + "util.py",
        "def plain_variable(v):\n"
        '    """The tf.Variable inside a variable of Keras 3; anything else as it is."""\n'
        '    value = getattr(v, "value", None)\n'
        "    return value if isinstance(value, tf.Variable) else v\n\n\n"
        "def optimizer_variables(optimizer):\n    variables = optimizer.variables\n"
        "    return variables() if callable(variables) else variables\n\n\n"
        "def is_keras_3(keras):\n"
        "    # Keras 2 within TensorFlow does not always say its version.\n"
        '    return int(getattr(keras, "__version__", "2").split(".")[0]) >= 3\n\n\n',
        "a variable of Keras 3 is not a tf.Variable, it has one",
        before="def vars_to_refs(vars):\n",
    ),
    Edit(
        "keras3-group-refs",
        TF + "util.py",
        "    return vars.ref()\n",
        "    return plain_variable(vars).ref()\n",
        "groups= takes lists of the model's variables",
    ),
    Edit(
        "keras3-import",
        TF + "__init__.py",
        "_make_subgraph, _cache, vars_to_refs, refs_to_vars",
        "_make_subgraph, _cache, vars_to_refs, refs_to_vars, plain_variable",
        "the edits below use it",
    ),
    Edit(
        "keras3-groups",
        TF + "__init__.py",
        """\
                            var_name2grad[var.name] = (i, grad)
                    grads_split = []
                    for group in groups:
                        grad_group = []
                        for var in group:
                            if var.name in var_name2grad:
                                grad_group.append(var_name2grad[var.name])
                                del var_name2grad[var.name]
""",
        """\
                            var_name2grad[var.ref()] = (i, grad)
                    grads_split = []
                    for group in groups:
                        grad_group = []
                        for var in group:
                            if var.ref() in var_name2grad:
                                grad_group.append(var_name2grad[var.ref()])
                                del var_name2grad[var.ref()]
""",
        "Keras 3 calls every Dense layer's kernel the same, and all gradients but one got lost",
    ),
    added(
        "keras3-allreduce",
        TF + "__init__.py",
        "    tensor = plain_variable(tensor)\n",
        "allreduce() takes a variable of Keras 3, also with compression",
        after="(op, average)\n",
        before="\n    if isinstance(tensor, tf.IndexedSlices):",
    ),
    added(
        "keras3-grouped-allreduce",
        TF + "__init__.py",
        "    tensors = [plain_variable(tensor) for tensor in tensors]\n",
        "grouped_allreduce() takes variables of Keras 3, also with compression",
        after="(op, average)\n",
        before="\n    average_in_framework = False",
    ),
    Edit(
        "keras3-tape-local",
        TF + "__init__.py",
        "self._local_sources.add(source.ref())",
        "self._local_sources.add(plain_variable(source).ref())",
        "register_local_source() takes the model's variables",
    ),
    added(
        "keras3-tape",
        TF + "__init__.py",
        "            sources = [plain_variable(source) for source in sources]\n",
        "DistributedGradientTape.gradient() takes model.trainable_variables",
        before="            gradients = super(self.__class__, self).gradient(target, sources,",
    ),
    Edit(
        "keras3-tape-split",
        TF + "__init__.py",
        "is_local_source = s.ref() in self._local_sources",
        "is_local_source = plain_variable(s).ref() in self._local_sources",
        "get_local_and_global_gradients() takes model.trainable_variables",
    ),
    Edit(
        "keras3-broadcast-import",
        TF + "functions.py",
        "import _cache, _executing_eagerly, _make_subgraph\n",
        "import _cache, _executing_eagerly, _make_subgraph, plain_variable\n",
        "the edit below uses it",
    ),
    added(
        "keras3-broadcast",
        TF + "functions.py",
        "    variables = [plain_variable(var) for var in variables]\n",
        "broadcast_variables() takes model.variables and optimizer.variables",
        before="    if inplace:\n        vars_by_device",
    ),
    Edit(
        "keras3-broadcast-names",
        TF + "mpi_ops.py",
        "                                                        "
        "variable_names=[var.name for var in variables],",
        "                                                        "
        'variable_names=[f"{i}.{_normalize_name(var.name)}" for i, var in enumerate(variables)],',
        "in Keras 3 variables share names, and an operation's tensors must not",
    ),
    Edit(
        "broadcast-gradient",
        TF + "mpi_ops.py",
        """\
    if rank() != root_rank:
        return grad_reduced * 0
    return grad_reduced
""",
        """\
    return grad_reduced * tf.cast(tf.equal(rank_op(), root_rank), grad_reduced.dtype)
""",
        "TensorFlow left out the averaging before a multiplication with 0, on all ranks but one, "
        "and that one waited for ever",
    ),
)

ELASTIC = (
    added(
        "keras3-elastic-import",
        TF + "elastic.py",
        "from horovod.tensorflow.util import optimizer_variables\n",
        "the edits below use it",
        after="from horovod.tensorflow.mpi_ops import _executing_eagerly, init, rank, shutdown\n",
    ),
    Edit(
        "keras3-elastic-broadcast",
        TF + "elastic.py",
        "broadcast_variables(optimizer.variables(), root_rank=0)",
        "broadcast_variables(optimizer_variables(optimizer), root_rank=0)",
        "in Keras 3 optimizer.variables is a list, not a method",
    ),
    Edit(
        "keras3-elastic-state",
        TF + "elastic.py",
        "self.optimizer.variables()",
        "optimizer_variables(self.optimizer)",
        "in Keras 3 optimizer.variables is a list, not a method",
        count=3,
    ),
)

# Ranks match operations by name, and an object's operation was named after its type.
OBJECTS = tuple(
    Edit(
        f"objects-{framework}",
        f"horovod/{framework}/functions.py",
        "        name = type(obj).__name__\n",
        '        name = "object"\n',
        "broadcast_object() hung where ranks passed objects of different types",
        count=2,
    )
    for framework in ("torch", "tensorflow")
)

SIZE_OP = "size_op(process_set_id=process_set.process_set_id)"
SELF_SIZE_OP = "size_op(process_set_id=self.process_set.process_set_id)"
IF_ELASTIC = 'if int(os.environ.get("HOROVOD_ELASTIC", 0)) else'

# Where Horovod divides gradients that stay on their rank, and how often that occurs there.
GRAD = (("sparse", "grad.values / horovod_size", "grad"), ("dense", "grad /= horovod_size", "grad"))
BY_VARIABLE = (
    ("reference", "v2g[v_ref] /= horovod_size", "v2g[v_ref]"),
    ("variable", "v2g[v] /= horovod_size", "v2g[v]"),
)
SCALING = (
    ("tape", TF + "__init__.py", 2, GRAD, 4),
    ("keras", "horovod/_keras/__init__.py", 1, GRAD, 2),
    ("sum", TF + "gradient_aggregation.py", 1, BY_VARIABLE, 1),
    ("sum-eager", TF + "gradient_aggregation_eager.py", 1, BY_VARIABLE, 1),
)

# A function traced in a cell on one rank may run on all of them later, and one traced in a smaller
# world in a larger one. (Sizes that matter only with ROCm are left as they are.)
WORLDS: tuple[Change, ...] = (
    Edit(
        "tensorflow-on-one-rank",
        TF + "__init__.py",
        "(process_set.included() and process_set.size() > 1)",
        "(process_set.included() and "
        "max(process_set.size(), int(os.environ.get('RANKROOM_SIZE', 1))) > 1)",
        "a function traced on one rank averaged no gradients on more",
        count=2,
    ),
    *(
        Edit(
            f"size-{name}",
            TF + "__init__.py",
            f"{SIZE_OP}\n{indent}{IF_ELASTIC} process_set.size(),\n{indent}dtype={dtype})",
            f"{SIZE_OP},\n{indent}dtype={dtype})",
            "sparse gradients were divided by the size of the world that they were traced in",
        )
        for name, indent, dtype in (
            ("sparse", " " * 35, "tensor.values.dtype"),
            ("grouped-sparse", " " * 39, "x.dtype"),
        )
    ),
    *(
        Edit(
            f"size-local-{name}",
            file,
            f"horovod_size = {SELF_SIZE_OP} {IF_ELASTIC} self.process_set.size()\n",
            f"horovod_size = lambda dtype: tf.cast({SELF_SIZE_OP}, dtype)\n",
            "local gradients were divided by the size of the world that they were traced in",
            count,
        )
        for name, file, count, _, _ in SCALING
    ),
    *(
        Edit(
            f"size-local-{name}-{use}",
            file,
            old,
            f"{old}({gradient}.dtype)",
            "TensorFlow divides tensors of the same type only",
            count,
        )
        for name, file, _, uses, count in SCALING
        for use, old, gradient in uses
    ),
    Edit(
        "size-reducescatter",
        TF + "mpi_ops.py",
        "        grad *= process_set.size()\n",
        "        grad *= tf.cast(size_op(process_set_id), grad.dtype)\n",
        "gradients of a sum had the size of the world that they were traced in",
    ),
    Edit(
        "size-grouped-reducescatter",
        TF + "mpi_ops.py",
        "        grads = [grad * process_set.size() for grad in grads]\n",
        "        grads = [grad * tf.cast(size_op(process_set_id), grad.dtype) for grad in grads]\n",
        "gradients of a sum had the size of the world that they were traced in",
    ),
    Edit(
        "size-batch-norm",
        TF + "sync_batch_norm.py",
        "    if size() > 1:\n",
        "    if max(size(), int(os.environ.get('RANKROOM_SIZE', 1))) > 1:\n",
        "batch normalisation traced in a world of one rank took no notice of others later",
    ),
    Edit(
        "size-batch-norm-mean",
        TF + "sync_batch_norm.py",
        "      group_stack /= size()\n",
        "      group_stack /= tf.cast(size_op(), group_stack.dtype)\n",
        "means were divided by the size of the world that they were traced in",
    ),
    Edit(
        "size-batch-norm-import",
        TF + "sync_batch_norm.py",
        "import tensorflow as tf\n"
        "from horovod.tensorflow.mpi_ops import _allreduce\n"
        "from horovod.tensorflow.mpi_ops import size, rank\n",
        "import os\n\nimport tensorflow as tf\n"
        "from horovod.tensorflow.mpi_ops import _allreduce\n"
        "from horovod.tensorflow.mpi_ops import size, size_op, rank\n",
        "the edits above use them",
    ),
)

# What Horovod's Python needs to run with today's frameworks.
PLAIN_PYTHON: tuple[Change, ...] = (*PYTHON, *VARIABLES, *KERAS, *ELASTIC)
PYTHON_EDITS: tuple[Change, ...] = (*PLAIN_PYTHON, *RENDEZVOUS, *OBJECTS, *WORLDS)
