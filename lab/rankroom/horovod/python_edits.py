"""Edits of Horovod's Python files: Keras 3, and what newer Pythons no longer have.

They go onto the wheel that was compiled, so changing one of them costs no compilation.
"""

from __future__ import annotations

from rankroom.horovod.edits import Addition, Change, Edit

TF = "horovod/tensorflow/"

PYTHON = (
    Edit(
        "which",
        "horovod/runner/js_run.py",
        "from distutils.spawn import find_executable",
        "from shutil import which as find_executable",
        "Python 3.12 has no distutils",
    ),
)

VARIABLES = (
    Edit(
        "keras3-variable",
        TF + "util.py",
        "def vars_to_refs(vars):\n",
        '''\
def plain_variable(v):
    """The tf.Variable inside a variable of Keras 3; anything else as it is."""
    value = getattr(v, "value", None)
    return value if isinstance(value, tf.Variable) else v


def optimizer_variables(optimizer):
    variables = optimizer.variables
    return variables() if callable(variables) else variables


def is_keras_3(keras):
    # Keras 2 within TensorFlow does not always say its version.
    return int(getattr(keras, "__version__", "2").split(".")[0]) >= 3


def vars_to_refs(vars):
''',
        "a variable of Keras 3 is not a tf.Variable, it has one",
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
    Edit(
        "keras3-allreduce",
        TF + "__init__.py",
        "(op, average)\n\n    if isinstance(tensor, tf.IndexedSlices):",
        "(op, average)\n    tensor = plain_variable(tensor)\n\n"
        "    if isinstance(tensor, tf.IndexedSlices):",
        "allreduce() takes a variable of Keras 3, also with compression",
    ),
    Edit(
        "keras3-grouped-allreduce",
        TF + "__init__.py",
        "(op, average)\n\n    average_in_framework = False",
        "(op, average)\n    tensors = [plain_variable(tensor) for tensor in tensors]\n\n"
        "    average_in_framework = False",
        "grouped_allreduce() takes variables of Keras 3, also with compression",
    ),
    Edit(
        "keras3-tape-local",
        TF + "__init__.py",
        "self._local_sources.add(source.ref())",
        "self._local_sources.add(plain_variable(source).ref())",
        "register_local_source() takes the model's variables",
    ),
    Edit(
        "keras3-tape",
        TF + "__init__.py",
        "            gradients = super(self.__class__, self).gradient(target, sources,",
        "            sources = [plain_variable(source) for source in sources]\n"
        "            gradients = super(self.__class__, self).gradient(target, sources,",
        "DistributedGradientTape.gradient() takes model.trainable_variables",
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
    Edit(
        "keras3-broadcast",
        TF + "functions.py",
        "    if inplace:\n        vars_by_device",
        "    variables = [plain_variable(var) for var in variables]\n"
        "    if inplace:\n        vars_by_device",
        "broadcast_variables() takes model.variables and optimizer.variables",
    ),
    Edit(
        "keras3-broadcast-names",
        TF + "mpi_ops.py",
        "                                                        "
        "variable_names=[var.name for var in variables],",
        "                                                        "
        'variable_names=[f"{i}.{var.name}" for i, var in enumerate(variables)],',
        "in Keras 3 variables share names, and an operation's tensors must not",
    ),
)

KERAS: tuple[Change, ...] = (
    Addition(
        "keras3-optimizer",
        "horovod/_keras/keras3.py",
        "keras3.py",
        "Keras 3's optimizers share no interface with Keras 2's",
    ),
    Addition(
        "keras3-callbacks",
        "horovod/_keras/keras3_callbacks.py",
        "keras3_callbacks.py",
        "Keras 3 has no backend.get_value and no optimizer.lr",
    ),
    Addition(
        "keras3-batch-norm",
        TF + "sync_batch_norm3.py",
        "sync_batch_norm3.py",
        "Keras 3's BatchNormalization has no fused=, and other moments",
    ),
    Edit(
        "keras3-dispatch",
        "horovod/_keras/__init__.py",
        "from horovod.tensorflow.mpi_ops import rank, size_op\n",
        "from horovod.tensorflow.mpi_ops import rank, size_op\n"
        "from horovod.tensorflow.util import is_keras_3\n",
        "the edits below use it",
    ),
    Edit(
        "keras3-dispatch-optimizer",
        "horovod/_keras/__init__.py",
        "    class _DistributedOptimizer(*optimizer.__class__.__bases__):\n",
        """\
    if is_keras_3(keras):
        from horovod._keras import keras3
        return keras3.create_distributed_optimizer(
            keras, optimizer, name, device_dense, device_sparse, compression, sparse_as_dense,
            gradient_predivide_factor, op, backward_passes_per_step,
            average_aggregated_gradients, groups, process_set, scale_local_gradients)

    class _DistributedOptimizer(*optimizer.__class__.__bases__):
""",
        "hands Keras 3 optimizers to the file made for them",
    ),
    Edit(
        "keras3-dispatch-load",
        "horovod/_keras/__init__.py",
        "    if legacy_opts:\n        keras_subclasses",
        """\
    if is_keras_3(keras):
        from horovod._keras import keras3
        return keras3.load_model(keras, wrap_optimizer, filepath, custom_optimizers,
                                 custom_objects)

    if legacy_opts:
        keras_subclasses""",
        "hands Keras 3 models to the file made for them",
    ),
    *(
        Edit(
            f"keras3-dispatch-callbacks-{name}",
            f"horovod/{folder}/callbacks.py",
            "from horovod._keras import callbacks as _impl\n",
            """\
from horovod.tensorflow.util import is_keras_3

if is_keras_3(keras):
    from horovod._keras import keras3_callbacks as _impl
    _VARIABLES = (tf.Variable, keras.Variable)
else:
    from horovod._keras import callbacks as _impl
    _VARIABLES = tf.Variable
""",
            "hands Keras 3 to the file made for it",
        )
        for name, folder in (("keras", "keras"), ("tf", "tensorflow/keras"))
    ),
    *(
        Edit(
            f"keras3-local-{name}-{what}",
            f"horovod/{folder}/callbacks.py",
            f"isinstance({what}, tf.Variable)",
            f"isinstance({what}, _VARIABLES)",
            "local_variables= takes variables of Keras 3",
        )
        for name, folder in (("keras", "keras"), ("tf", "tensorflow/keras"))
        for what in ("local_variables", "var")
    ),
    *(
        Edit(
            f"tf-keras-backend-{name}",
            TF + f"keras/{file}",
            "    from keras import backend as K\n",
            "    from tensorflow.keras import backend as K\n",
            "with TF_USE_LEGACY_KERAS=1, tf.keras is not the package named keras",
        )
        for name, file in (("init", "__init__.py"), ("callbacks", "callbacks.py"))
    ),
    Edit(
        "keras3-dispatch-batch-norm",
        TF + "__init__.py",
        "from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization\n",
        """\
import tensorflow as tf
from horovod.tensorflow.util import is_keras_3
if is_keras_3(tf.keras):
    from horovod.tensorflow.sync_batch_norm3 import SyncBatchNormalization
else:
    from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization
""",
        "hands Keras 3 to the file made for it",
    ),
)

ELASTIC = (
    Edit(
        "keras3-elastic-import",
        TF + "elastic.py",
        "from horovod.tensorflow.mpi_ops import _executing_eagerly, init, rank, shutdown\n",
        "from horovod.tensorflow.mpi_ops import _executing_eagerly, init, rank, shutdown\n"
        "from horovod.tensorflow.util import optimizer_variables\n",
        "the edits below use it",
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

PYTHON_EDITS: tuple[Change, ...] = (*PYTHON, *VARIABLES, *KERAS, *ELASTIC)
