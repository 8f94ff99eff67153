# What every command begins with: it writes down that it was called, and may be replaced.
name=$(basename "$0")
mkdir -p "$FAKE_SCHEDULER/jobs" "$FAKE_SCHEDULER/scripts"
echo "$(date +%s.%N) $name $*" >>"$FAKE_SCHEDULER/calls"
[ ! -e "$FAKE_SCHEDULER/instead/$name" ] || exec sh "$FAKE_SCHEDULER/instead/$name" "$@"
# The number of a new job; two that are submitted at once get two.
new() {
  number=101
  until mkdir "$FAKE_SCHEDULER/number-$number" 2>/dev/null; do number=$((number + 1)); done
  echo $number
}
