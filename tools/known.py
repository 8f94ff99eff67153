"""Other projects' tests and examples that are known to fail, and why."""

from __future__ import annotations

_MUON = "they try every optimizer on a bias, and PyTorch's Muon only accepts matrices"
_KERAS = "they use parts of Keras 2 that Keras 3 no longer has"
_HALF = "they ask that 0 in float16 be smaller than 1e-8, which is 0 in float16 for NumPy 2"
_THIRD = (
    "on three ranks, with a plain build as well: they ask that a sum times a third be the sum "
    "divided by three, to the last bit"
)
_HUB = "the controller keeps no history of requests; that is in the records"
_ALONE = "a request that fails does not cancel those that come after it"
_PLACE = "the controller's file contains its address rather than a host name"
_QUEUE = "they use a load-balanced view, and there is no task queue"
_ASYNC = "pytest-asyncio is not installed"

# The suite, a pattern of tests (or an example's path), and the reason in words.
KNOWN: tuple[tuple[str, str, str], ...] = (
    ("torch", "test_broadcast_state(_options)?", _MUON),
    ("torch", "test_force_allreduce", _MUON),
    ("keras", "test_gradient_aggregation_.*", _KERAS),
    ("keras", "test_grad_aggregation_with_inf_grad", _KERAS),
    ("keras", "test_broadcast_global_variables_callback_with_local_vars", _KERAS),
    ("keras", "test_(legacy|partial_distributed)_optimizer", _KERAS),
    ("keras", "test_sparse_as_dense(_with_grad_aggregation)?", _KERAS),
    ("keras", "test_train_model_lr_schedule", _KERAS),
    ("keras-sets", "test_process_set_optimizer", _KERAS),
    ("tensorflow", "test_(horovod_syncbn_cpu|partial_distributed_gradient_tape)", _KERAS),
    ("torch", "test_horovod_allreduce_prescale", _THIRD),
    ("tensorflow", "test_horovod_(grouped_)?allreduce_(average|product)_cpu", _THIRD),
    ("tensorflow", "test_horovod_grouped_allreduce_mixed_indexed_slices_average_cpu", _THIRD),
    ("tensorflow", "test_horovod_allreduce_cpu_(prescale|postscale)", _THIRD),
    ("tensorflow", "test_horovod_(grouped_)?reducescatter_cpu_prescale", _THIRD),
    ("tensorflow-sets", "test_horovod_reducescatter_grad_cpu_process_sets", _HALF),
    ("test_client", "test_get_(execute_)?result", _HUB),
    ("test_client", "test_db_query_.*", _HUB),
    ("test_client", "test_hub_history", _HUB),
    ("test_client", "test_purge_.*", _HUB),
    ("test_client", "test_resubmit_(inflight|badkey)", _HUB),
    ("test_client", "test_resubmit(_chain|_header|_aborted)?", _QUEUE),
    ("test_client", "test_warning_on_hostname_match", _PLACE),
    ("test_view", "test_get_result", _HUB),
    ("test_magics", "test_autopx_blocking", _HUB),
    ("test_magics", "test_autopx_nonblocking", _ALONE),
    ("test_asyncresult", "test_hubresult_timestamps", _HUB),
    ("test_asyncresult", "test_(get_dict_bad|iter_amr|return_exceptions|split_map_result)", _QUEUE),
    ("test_asyncresult", "test_(wall_time|serial_time|elapsed)_single", _QUEUE),
    ("test_remotefunction", "test_parallel_map", _QUEUE),
    ("test_async", "test_sync_asyncio", _ASYNC),
    ("test_dependency", "test_require_(function|object)", _QUEUE),
    (
        "examples",
        "examples/adasum/adasum_small_model.py",
        "fails: Horovod has no Adasum on Gloo, only with MPI or NCCL",
    ),
    (
        "examples",
        ".*/variable_batch_size_and_lr_example.py",
        "fails: DeepSpeed 0.19.8 passes a type of NumPy to `torch.empty` there",
    ),
)

# Tests of Horovod that are not run on more than two ranks. The first two do not end on three, even
# with a plain build: according to their source, ranks number unnamed operations differently after a
# join. The next two require sum / 3 to equal sum * (1 / 3) to the last bit: ranks where it does not
# leave the others waiting. In the last one, two dispatchers share the ranks.
FOR_TWO = {
    "torch": ("join_allgather", "join_broadcast", "join_allreduce", "reducescatter_prescale"),
    "data-service": ("two_dispatchers",),
}
