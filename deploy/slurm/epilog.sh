#!/bin/sh
# Epilog of slurm.conf: undoes what prolog.sh set when the last job of the node has ended.
set -u
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
MARKS=/run/polyrail-jobs
LOG=/var/log/polyrail-slurm.log

# Without a mark the prolog of this job did not run here, and another job may be tuned for.
[ -e "$MARKS/job.$SLURM_JOB_ID" ] || exit 0
exec 9>"$MARKS/.lock" || exit 0
flock 9
rm -f "$MARKS/job.$SLURM_JOB_ID"
for mark in "$MARKS"/job.*; do
    [ -e "$mark" ] && exit 0
done
polyrail host undo tune throughput >>"$LOG" 2>&1 9>&-
exit 0
