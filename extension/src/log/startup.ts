/**
 * TensorFlow's start-up messages on every rank. Python's `display/startup_messages.py` has the same ones, and says
 * which they are and why; tests/support/collapse.json tests both.
 */

/** Start-up messages of one rank that are folded into one line, at most. */
export const FOLD_MOST = 64;

const STAMP =
  String.raw`(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] (?:\S+/)?` +
  String.raw`|[IWE]\d{4} \d\d:\d\d:\d+\.\d+ +\d+ )`;
const FROM = [
  String.raw`port\.cc:\d+\] oneDNN custom operations are on\.`,
  String.raw`cpu_feature_guard\.cc:\d+\] This TensorFlow binary is optimized `,
  String.raw`cudart_stub\.cc:\d+\] Could not find cuda drivers on your machine`,
  String.raw`cuda_(?:fft|dnn|blas)\.cc:\d+\] Unable to register cu(?:FFT|DNN|BLAS) factory: `,
  String.raw`computation_placer\.cc:\d+\] computation placer already registered\.`,
  String.raw`py_utils\.cc:\d+\] TF-TRT Warning: Could not find TensorRT`,
  String.raw`cuda_(?:gpu_)?executor\.cc:\d+\] successful NUMA node read`,
  String.raw`cuda_(?:gpu_)?executor\.cc:\d+\] could not open file to read NUMA`,
  String.raw`gpu_device\.cc:\d+\] Created device /job:`,
  String.raw`cuda_dnn\.cc:\d+\] Loaded cuDNN version `,
  String.raw`service\.cc:\d+\] (?:XLA service 0x[0-9a-f]+ initialized for| +StreamExecutor device \()`,
  String.raw`device_compiler\.h:\d+\] Compiled cluster using XLA!`,
  String.raw`dump_mlir_util\.cc:\d+\] disabling MLIR crash reproducer`
];
const WHOLE = [
  String.raw`WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR`,
  String.raw`To enable the following instructions: .{1,400}rebuild TensorFlow with the appropriate compiler flags\.`,
  String.raw`Your kernel may have been built without NUMA support\.`
];
const KNOWN = new RegExp(`^(?:${STAMP}(?:${FROM.join('|')})|(?:${WHOLE.join('|')})$)`);

/** Whether a line of stderr is a start-up message. */
export function isStartupMessage(text: string): boolean {
  return KNOWN.test(text);
}
