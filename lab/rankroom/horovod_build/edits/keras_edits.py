"""Edits and files that let `horovod.keras` and `horovod.tensorflow.keras` work with Keras 3."""

from __future__ import annotations

from rankroom.horovod_build.edits.edit import Addition, Change, Edit, added

TF = "horovod/tensorflow/"

# Horovod's Spark estimators set its filepath later; Keras 3 needs one with a valid ending at once.
BEST_MODEL = (
    (
        "filepath",
        "save_freq='epoch'):\n        super(BestModelCheckpoint, self).__init__(filepath=None,\n",
        """\
save_freq='epoch',
                 filepath=None):
        super(BestModelCheckpoint, self).__init__(filepath=filepath or 'unset.weights.h5',
""",
    ),
    (
        "unset",
        "save_freq=save_freq)\n",
        """\
save_freq=save_freq)
        if filepath is None:
            self.filepath = None

    def on_train_begin(self, logs=None):
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint does not know where to save the model: give it "
                             "filepath='best.keras'")
        super(BestModelCheckpoint, self).on_train_begin(logs)
""",
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
        "keras3-reduction",
        "horovod/_keras/keras3_reduction.py",
        "keras3_reduction.py",
        "what the optimizer above does with gradients",
    ),
    Addition(
        "keras3-classes",
        "horovod/_keras/keras3_classes.py",
        "keras3_classes.py",
        "Keras 3 has no optimizer.variables() any more, and compiles with XLA on GPUs",
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
    added(
        "keras3-dispatch",
        "horovod/_keras/__init__.py",
        "from horovod.tensorflow.util import is_keras_3\n",
        "the edits below use it",
        after="from horovod.tensorflow.mpi_ops import rank, size_op\n",
    ),
    added(
        "keras3-dispatch-optimizer",
        "horovod/_keras/__init__.py",
        """\
    if is_keras_3(keras):
        from horovod._keras import keras3
        return keras3.create_distributed_optimizer(
            keras, optimizer, name, device_dense, device_sparse, compression, sparse_as_dense,
            gradient_predivide_factor, op, backward_passes_per_step,
            average_aggregated_gradients, groups, process_set, scale_local_gradients)

""",
        "hands Keras 3 optimizers to the file made for them",
        before="    class _DistributedOptimizer(*optimizer.__class__.__bases__):\n",
    ),
    added(
        "keras3-dispatch-load",
        "horovod/_keras/__init__.py",
        """\
    if is_keras_3(keras):
        from horovod._keras import keras3
        return keras3.load_model(keras, wrap_optimizer, filepath, custom_optimizers,
                                 custom_objects)

""",
        "hands Keras 3 models to the file made for them",
        before="    if legacy_opts:\n        keras_subclasses",
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
    added(
        "keras3-adapt",
        TF + "__init__.py",
        """\

if is_keras_3(tf.keras):
    from horovod._keras import keras3_classes
    keras3_classes.adapt(tf.keras)
""",
        "loops of one's own import this only",
        after="            _tape.register_local_source(var)\n        return _tape\n",
    ),
    *(
        Edit(
            f"best-model-{name}-{what}",
            f"horovod/{folder}/callbacks.py",
            old,
            new,
            "BestModelCheckpoint had no filepath, which Keras 3 requires",
        )
        for name, folder in (("keras", "keras"), ("tf", "tensorflow/keras"))
        for what, old, new in BEST_MODEL
    ),
)
