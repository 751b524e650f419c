#!/usr/bin/env bash
# Run traincast check in a step of GitHub Actions: annotations on stdout, traincast-check.xml (JUnit) and
# traincast-check.md (the comment) in the working folder. What to check stands in the environment, as action.yml has it.
set -uo pipefail

words=()
lines() { # option values: one option for each line that is not empty
  local option=$1 value
  while IFS= read -r value; do
    [ -n "$value" ] && { [ -n "$option" ] && words+=("$option" "$value") || words+=("$value"); }
  done <<<"$2"
}
lines "" "${LOG:-}"
lines --job "${JOB:-}"
lines --baseline "${BASELINE:-}"
if [ -n "${BETWEEN:-}" ]; then
  words+=(--between)
  lines "" "$BETWEEN"
fi
lines --cluster "${CLUSTER:-}"
lines --fail-above "${FAIL_ABOVE:-}"
# Further options are words, as on a command line.
read -r -a more <<<"${ARGUMENTS:-}"
words+=("${more[@]}")

traincast check "${words[@]}" --junit traincast-check.xml --json >traincast-check.json
code=$?
verdict=$(python -c 'import json; print(json.load(open("traincast-check.json")).get("verdict", {}).get("word", "failed"))')
traincast check "${words[@]}" --no-causes --format github || true
{
  echo "### traincast check: $verdict"
  echo '```'
  COLUMNS=100 traincast check "${words[@]}" || true
  echo '```'
} >traincast-check.md
cat traincast-check.md >>"${GITHUB_STEP_SUMMARY:-/dev/null}"
{
  echo "verdict=$verdict"
  echo "exit-code=$code"
} >>"${GITHUB_OUTPUT:-/dev/null}"
[ "$code" = 5 ] && [ "${CANNOT_TELL_FAILS:-false}" != true ] && exit 0
exit "$code"
