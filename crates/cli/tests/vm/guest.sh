#!/bin/busybox sh
# The first process of the virtual machine: every scenario of tests/vm, one after the other.
# Lines for the test begin with @@; everything else is there for whoever reads a failure.

/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mkdir -p /var/lib /etc
echo 'root:x:0:0::/:/bin/sh' >/etc/passwd
echo 'nobody:x:65534:65534::/:/bin/sh' >>/etc/passwd
hostname vm
for module in /modules/*.ko; do insmod "$module"; done
for n in 0 1 2 3; do
    ip link set "eth$n" up
    ip addr add "10.9.$n.2/24" dev "eth$n"
done
ip link set lo up
echo "@@ up $(cut -d' ' -f1 /proc/uptime) $(uname -r)"

# --- What scenarios are made of ---------------------------------------------------------------

# Every setting that could be changed, by what it is and not by its number. Few programs, for each
# takes its time here.
snapshot() {
    { ls -d /proc/irq/*/*/; grep -s . /proc/irq/[0-9]*/smp_affinity /proc/irq/[0-9]*/smp_affinity_list; } |
        awk -F/ '
            /\/$/ { handlers[$4] = handlers[$4] " " $5; next }
            { print "irq" handlers[$4] " " $5 }' | sort
    grep -s . /proc/irq/default_smp_affinity /sys/class/net/eth*/queues/*/?ps_cpus \
        /proc/sys/net/ipv4/tcp_* /proc/sys/net/core/* /proc/sys/kernel/numa_balancing \
        /sys/devices/system/cpu/online
    # How many queues there are shows in the files above; rings are in none.
    ethtool -g eth0 2>&1
}

begin() {
    name=$1
    faults=0
    snapshot >/tmp/before
    rm -f /tmp/*.json
    export POLYRAIL_STATE_DIR="/var/lib/$name"
}

fault() {
    faults=$((faults + 1))
    echo "@@ fault $name: $*"
}

# expect CODE COMMAND…: the exit code; what was printed is in /tmp/out and /tmp/err.
expect() {
    code=$1
    shift
    "$@" >/tmp/out 2>/tmp/err
    found=$?
    if [ "$found" != "$code" ]; then
        fault "\`$*\` ended with $found, not $code"
        sed 's/^/    out: /' /tmp/out
        sed 's/^/    err: /' /tmp/err
    fi
}

# The last command's output, or its errors, must contain a text.
says() {
    grep -qF -- "$1" /tmp/out /tmp/err || {
        fault "\`$1\` is missing"
        sed 's/^/    out: /' /tmp/out
        sed 's/^/    err: /' /tmp/err
    }
}

says_not() {
    grep -qF -- "$1" /tmp/out /tmp/err && fault "\`$1\` is there: $(grep -hF -- "$1" /tmp/out /tmp/err)"
}

# Something must have changed since `begin`, or putting it back would prove nothing.
changed() {
    snapshot >/tmp/now
    cmp -s /tmp/before /tmp/now && fault "nothing was changed"
}

# Everything must be as it was at `begin`.
restored() {
    snapshot >/tmp/now
    cmp -s /tmp/before /tmp/now || {
        fault "not as before ($1)"
        diff /tmp/before /tmp/now | head -n 20
    }
}

finish() {
    restored end
    echo "    $name: $(cut -d' ' -f1 /proc/uptime) s since boot"
    if [ "$faults" = 0 ]; then echo "@@ passed $name"; else echo "@@ failed $name"; fi
}

# until_true COMMAND…: waits for what must come, however slow this machine is.
until_true() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 600 ] || {
            fault "never came: $*"
            return
        }
        usleep 100000
    done
}

journal_has() {
    [ "$(cat "/var/lib/$name/"*/journal.jsonl 2>/dev/null | wc -l)" -ge "$1" ]
}

as_before() {
    snapshot >/tmp/now
    cmp -s /tmp/before /tmp/now
}

# Begins to watch; what is seen goes to /tmp/watch.
watch() {
    # The shell empties it only when its child begins, and what an earlier watch said would do.
    rm -f /tmp/watch.err
    polyrail host watch --every 1s >/tmp/watch 2>/tmp/watch.err &
    watch=$!
    until_true grep -qs watching /tmp/watch.err
}

# Ends the watch, which has seen something.
unwatch() {
    kill -TERM $watch
    wait $watch
    found=$?
    [ $found = 1 ] || fault "watch ended with $found, not 1"
    sed 's/^/    watch: /' /tmp/watch /tmp/watch.err
}

irq_of() {
    for folder in /proc/irq/[0-9]*; do [ -d "$folder/$1" ] && basename "$folder"; done
}

# One packet there and back on each queue of a NIC: the CPU decides the queue.
traffic() {
    for round in 1 2 3; do
        for cpu in 0 4 8 12; do
            taskset -c "$cpu" ping -c 1 -W 1 "10.9.$1.1" >/dev/null 2>&1
        done
    done
}

nic_of_virtio() { basename "$(readlink -f "/sys/bus/virtio/devices/$1/net/"*)"; }
virtio_of() { basename "$(readlink -f "/sys/class/net/$1/device")"; }

# --- Scenarios --------------------------------------------------------------------------------

begin round_trip
expect 0 polyrail host plan irq -o /tmp/plan.json
says "eth0 rx 0"
says "node 1"
expect 0 polyrail host apply /tmp/plan.json --dry-run
restored "dry run"
expect 0 polyrail host apply /tmp/plan.json
changed
expect 0 polyrail host verify /tmp/plan.json --allow-pending
expect 2 polyrail host apply /tmp/plan.json
says "no longer fits this host"
expect 0 polyrail host undo irq
restored reset
expect 0 polyrail host undo irq
says "nothing to undo"
finish

# Users wait two seconds for interrupts to arrive; here nothing is learnt by it again.
begin pending
traffic 0
expect 0 polyrail host plan irq --policy single --cpus 5 --nic eth0 -o /tmp/plan.json
expect 0 polyrail host apply --settle 0s /tmp/plan.json
says pending
expect 1 polyrail host verify
says pending
says_not drift
traffic 0
expect 0 polyrail host verify --wait 5s
says_not pending
expect 0 polyrail host show irq eth0 --interval 0s
expect 0 polyrail host undo irq
finish

begin channels_overwrite
expect 0 polyrail host plan irq --policy single --cpus 3 --nic eth1 -o /tmp/plan.json
expect 0 polyrail host apply --settle 0s /tmp/plan.json
expect 0 polyrail host verify --allow-pending
ethtool -L eth1 combined 2
ethtool -L eth1 combined 4
expect 1 polyrail host verify --allow-pending
says drift
expect 0 polyrail host undo irq
finish

begin cpu_offline
expect 0 polyrail host plan irq --nic eth2 --policy single --cpus 6 -o /tmp/plan.json
expect 0 polyrail host apply --settle 0s /tmp/plan.json
echo 0 >/sys/devices/system/cpu/cpu6/online
expect 1 polyrail host verify
says "CPU 6 is offline"
echo 1 >/sys/devices/system/cpu/cpu6/online
expect 0 polyrail host undo irq
restored "CPU back"
# The plan of a moment ago, and now the CPU is gone.
expect 0 polyrail host plan irq --nic eth2 --policy single --cpus 6 -o /tmp/plan.json
echo 0 >/sys/devices/system/cpu/cpu6/online
snapshot >/tmp/without
expect 2 polyrail host apply --settle 0s /tmp/plan.json
says "CPUs online was 0-15 and is 0-5,7-15"
expect 3 polyrail host apply --settle 0s /tmp/plan.json --force
says "Invalid argument"
says "the host is as it was"
snapshot >/tmp/now
cmp -s /tmp/without /tmp/now || fault "a refused write was not rolled back"
echo 1 >/sys/devices/system/cpu/cpu6/online
finish

begin managed
disk=$(basename "$(readlink -f "/sys/block/vda/device/..")")
printf '"%s":\n  vectors:\n    1: 3\neth0:\n  queues:\n    0: 9\n' "$disk" >/tmp/map.yaml
expect 0 polyrail host plan irq --map /tmp/map.yaml -o /tmp/plan.json
expect 0 polyrail host apply --settle 0s /tmp/plan.json
managed_said=$(grep -hc "managed" /tmp/out)
if [ "$managed_said" = 0 ]; then
    # Kernels that say so by the file's mode: the plan has left the vector out already.
    expect 0 polyrail host plan irq --map /tmp/map.yaml
    says "managed"
fi
expect 0 polyrail host verify --allow-pending
expect 0 polyrail host undo irq
finish

begin rival
expect 0 polyrail host apply irq --settle 0s --nic eth0
victim=$(irq_of "$(virtio_of eth0)-input.1")
printf '#!/bin/sh\nwhile :; do echo 14 >/proc/irq/%s/smp_affinity_list; sleep 1; done\n' \
    "$victim" >/bin/rival
chmod +x /bin/rival
watch
/bin/rival &
rival=$!
# Each second it writes the same again, and each second that is news.
named_twice() { [ "$(grep -c "eth0 rx 1.*14 instead of.*by rival (process $rival" /tmp/watch)" -ge 2 ]; }
until_true named_twice
kill $rival
wait $rival 2>/dev/null
unwatch
grep -q "eth0 rx 2" /tmp/watch && fault "a value that nobody touched was named"
expect 1 polyrail host verify --allow-pending
# The rival set a value since, which stays otherwise.
expect 0 polyrail host undo irq --force
finish

# Two that move interrupts by themselves: one of a service manager, and one that somebody started.
begin irqbalance
mkdir -p /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
unit=/sys/fs/cgroup/system.slice/irqbalance.service
mkdir -p $unit
irq=$(irq_of "$(virtio_of eth2)-input.1")
# Each fights for another CPU, so that it shows who is at work.
printf '#!/bin/sh\nwhile :; do echo $1 >/proc/irq/%s/smp_affinity_list; usleep 100000; done\n' "$irq" >/bin/irqbalance
cat >/bin/systemctl <<'END'
#!/bin/sh
unit=/sys/fs/cgroup/system.slice/irqbalance.service
[ "$1 $3" = "--no-ask-password irqbalance.service" ] || exit 5
case $2 in
stop)
    for pid in $(cat $unit/cgroup.procs); do kill -9 "$pid"; done
    while [ -n "$(cat $unit/cgroup.procs)" ]; do usleep 10000; done ;;
start) sh -c "echo \$\$ >$unit/cgroup.procs; exec irqbalance 15" >/dev/null 2>&1 & ;;
esac
END
chmod +x /bin/irqbalance /bin/systemctl
old=$(cat "/proc/irq/$irq/smp_affinity_list")
affinity_is() { [ "$(cat "/proc/irq/$irq/smp_affinity_list")" = "$1" ]; }
systemctl --no-ask-password start irqbalance.service
until_true affinity_is 15
expect 0 polyrail host plan irq --nic eth2 --policy single --cpus 6 -o /tmp/plan.json
expect 0 polyrail host apply --settle 0s --irqbalance stop /tmp/plan.json
says "irqbalance.service"
[ -z "$(cat $unit/cgroup.procs)" ] || fault "the service was not stopped"
usleep 200000
affinity_is 6 || fault "somebody moved the interrupt back"
expect 0 polyrail host verify --allow-pending
expect 0 polyrail host undo irq
until_true affinity_is 15
systemctl --no-ask-password stop irqbalance.service
rmdir $unit
irqbalance 14 &
rival=$!
until_true affinity_is 14
expect 0 polyrail host plan irq --nic eth2 --policy single --cpus 6 -o /tmp/plan.json
expect 0 polyrail host apply --settle 0s --irqbalance stop /tmp/plan.json
says "irqbalance (process $rival)"
usleep 200000
affinity_is 6 || fault "a paused process moved the interrupt back"
expect 0 polyrail host undo irq
until_true affinity_is 14
kill -9 $rival
wait $rival 2>/dev/null
rm /bin/irqbalance /bin/systemctl
echo "$old" >"/proc/irq/$irq/smp_affinity_list"
finish

begin driver_named
expect 0 polyrail host plan irq --nic eth1 --policy single --cpus 3 -o /tmp/plan.json
expect 0 polyrail host apply --settle 0s /tmp/plan.json
watch
ethtool -L eth1 combined 2
ethtool -L eth1 combined 4
until_true grep -q "by the kernel: channels of eth1 were changed" /tmp/watch
unwatch
expect 0 polyrail host undo irq
finish

begin kill_9
expect 0 polyrail host plan irq -o /tmp/plan.json
polyrail host apply --settle 0s /tmp/plan.json --pace 1s >/tmp/out 2>/tmp/err &
victim=$!
until_true journal_has 4
kill -9 $victim
wait $victim 2>/dev/null
grep -q committed /var/lib/kill_9/*/journal.jsonl && fault "the kill came too late"
changed
expect 1 polyrail host verify /tmp/plan.json --allow-pending
says drift
# The plan was not carried out, and is no longer what fits: only the journal knows.
rm /tmp/plan.json
expect 0 polyrail host undo irq
restored "reset after kill -9"
finish

begin interrupted
polyrail host apply irq --settle 0s --pace 1s >/tmp/out 2>/tmp/err &
victim=$!
until_true journal_has 4
kill -TERM $victim
wait $victim
found=$?
[ $found = 130 ] || fault "an interrupted apply ended with $found, not 130"
says "stopped"
restored "interrupt"
finish

begin two_instances
polyrail host apply irq --settle 0s --pace 1s >/dev/null 2>&1 &
first=$!
until_true journal_has 4
expect 3 polyrail host apply irq --settle 0s
says "another polyrail (process $first) is changing this host"
kill -TERM $first
wait $first
finish

begin pristine
expect 0 polyrail host plan irq --nic eth0 --policy single --cpus 1 -o /tmp/plan.json
expect 0 polyrail host apply --settle 0s /tmp/plan.json
expect 0 polyrail host plan irq --nic eth0 --policy single --cpus 2 -o /tmp/plan.json
expect 0 polyrail host apply --settle 0s /tmp/plan.json
expect 0 polyrail host plan irq --nic eth1 --policy spread -o /tmp/plan.json
expect 0 polyrail host apply --settle 0s /tmp/plan.json
expect 0 polyrail host undo irq --pristine
restored "pristine"
finish

begin read_only_proc
expect 3 unshare -m sh -c 'mount -o remount,bind,ro /proc && exec polyrail host apply irq --settle 0s'
says "Read-only file system"
says "mounted read-only"
[ -e /var/lib/read_only_proc ] && fault "a session was begun"
finish

begin non_root
chmod 755 /tmp
expect 0 su nobody -c 'polyrail host plan irq'
expect 0 su nobody -c 'polyrail host show irq --interval 0s'
expect 3 su nobody -c 'polyrail host apply irq --settle 0s'
says "Permission denied"
says "run as root"
finish

begin unwritable_backup
mkdir -p /tmp/full
mount -t tmpfs -o ro tmpfs /tmp/full
expect 3 polyrail host apply irq --settle 0s --state-dir /tmp/full/state
says "/tmp/full/state"
says "can't read or write /tmp/full/state"
umount /tmp/full
finish

begin full_disk
# How much room the backup takes, and how much the whole journal.
expect 0 polyrail host apply irq --settle 0s
expect 0 polyrail host undo irq
backup=$(head -n 1 /var/lib/full_disk/*/journal.jsonl | wc -c)
mkdir -p /tmp/full
mount -t tmpfs -o "size=$(((backup / 4096 + 1) * 4096))" tmpfs /tmp/full
expect 3 polyrail host apply irq --settle 0s --state-dir /tmp/full
says "No space left on device"
restored "full disk"
lines=$(cat /tmp/full/*/journal.jsonl | wc -l)
[ "$lines" -ge 2 ] || fault "the disk was full before the first write: $lines lines"
umount /tmp/full
finish

begin vanished
device=$(virtio_of eth3)
expect 0 polyrail host plan irq --nic eth3 -o /tmp/plan.json
echo "$device" >/sys/bus/virtio/drivers/virtio_net/unbind
expect 2 polyrail host apply --settle 0s /tmp/plan.json
says "is gone"
echo "$device" >/sys/bus/virtio/drivers/virtio_net/bind
is_back() { [ -e /sys/class/net/eth3 ]; }
until_true is_back
ip link set eth3 up
ip addr add 10.9.3.2/24 dev eth3
finish

begin other_boot
expect 0 polyrail host plan irq --nic eth0 -o /tmp/plan.json
boot=$(cat /proc/sys/kernel/random/boot_id)
sed -i "s/$boot/00000000-0000-0000-0000-000000000000/" /tmp/plan.json
expect 2 polyrail host apply --settle 0s /tmp/plan.json
says "before this machine was booted"
restored refused
expect 0 polyrail host apply --settle 0s /tmp/plan.json --force
changed
expect 0 polyrail host undo irq
finish

begin profile
expect 0 polyrail host plan tune throughput
expect 0 polyrail host apply tune throughput
changed
expect 0 polyrail host verify
# What the driver can't do is left out; all else is right now.
expect 0 polyrail host plan tune throughput
says_not /proc/sys/
says_not xps_cpus
expect 0 polyrail host undo tune throughput
finish

begin disruptive
ip route add default via 10.9.0.1 dev eth0
expect 2 polyrail host apply channels eth0 combined=2
says "eth0 carries the default route"
restored refused
# Nobody confirms: it comes back by itself.
expect 0 polyrail host apply channels eth0 combined=2 --allow-disruptive=4s
ethtool -l eth0 >/tmp/out
grep -c "Combined:.*2" /tmp/out >/dev/null || fault "nothing was changed"
until_true as_before
expect 0 polyrail host apply channels eth0 combined=2 --allow-disruptive=4s
expect 0 polyrail host confirm
# Longer than it would wait for a word.
sleep 5
changed
expect 0 polyrail host undo nic
# An interface that carries nothing but data needs no leave.
expect 0 polyrail host apply channels eth1 combined=2
changed
expect 0 polyrail host undo nic
ip route del default
finish

begin rss
# Only here, for each program takes its time.
table() { ethtool -x eth3; }
table >/tmp/table
same_table() { table | cmp -s /tmp/table - || fault "another table than $1"; }
expect 0 polyrail host apply rss eth3 equal=2
says "0-1 x"
table >/tmp/out
says "0     1     0     1     0     1     0     1"
expect 0 polyrail host apply rss eth3 weights=0,3,1
says "1*"
expect 0 polyrail host show rss eth3
says_not " 0 "
# Fewer queues than the table uses: the kernel says no, and nothing else is changed.
expect 3 polyrail host apply channels eth3 combined=1
says "the host is as it was"
expect 0 polyrail host undo nic --pristine
same_table "before"
# The kernel's own table is its own again, and follows the number of queues.
expect 0 polyrail host apply channels eth3 combined=1
expect 0 polyrail host undo nic
same_table "before the queues were changed"
expect 2 polyrail host apply rss eth3 equal=5
says "needs 5 queues, and eth3 has 4; allowed: 1 to 4 queues"
expect 2 polyrail host apply rss eth1 equal=2
says "its driver reports no RSS table"
finish

begin refused_setting
# What the driver says beforehand that it can't do is not even tried.
expect 2 polyrail host apply channels eth1 combined=400
says "is too large; allowed: 4 on eth1, or less"
expect 3 polyrail host apply channels eth1 combined=0
says "the host is as it was"
finish

# The file that ships, smaller unless the test was given another: each cell is applied, read back, measured and undone.
begin experiment
expect 0 polyrail experiment run /experiment.yml --out /tmp/results
[ "$(grep -c '"verified":"read_back"' /tmp/results/cells.jsonl)" = "$(grep -c '"block":' /tmp/results/cells.jsonl)" ] ||
    fault "a cell was not read back"
grep -q '"irq":"matched"' /tmp/results/cells.jsonl || fault "no cell moved interrupts"
sed 's/^/    /' /tmp/out
restored "an experiment"
finish

begin killed_experiment
victim=$(irq_of "$(virtio_of eth0)-input.1")
cat >/tmp/slow.yml <<'END'
command: [sh, /tmp/slow]
figure: '([0-9])'
better: higher
factors:
  irq: [default, matched]
blocks: 8
END
cat >/tmp/slow <<END
[ "\$(cat /proc/irq/$victim/smp_affinity_list)" != "$(cat "/proc/irq/$victim/smp_affinity_list")" ] || exec echo 5
touch /tmp/moved
exec sleep 1000
END
polyrail experiment run /tmp/slow.yml --out /tmp/slow-results >/tmp/out 2>/tmp/err &
killed=$!
until_true [ -e /tmp/moved ]
kill -9 $killed
killall sleep
changed
expect 0 polyrail experiment undo /tmp/slow-results
says "undid what an experiment that was killed left"
restored "undo"
finish

begin experiment_without_rights
cat >/tmp/rings.yml <<'END'
settings:
  - ethtool: rings.rx
    at_most: 128
    why: a test
    source: a test
END
cat >/tmp/partial.yml <<'END'
command: [echo, "5"]
figure: '([0-9])'
better: higher
nics: eth1
factors:
  host_profile: [none, rings.yml]
  channels: [1, 2]
blocks: 8
END
chmod 1777 /tmp
expect 3 su nobody -c 'polyrail experiment run /tmp/partial.yml --out /tmp/partial'
says "host_profile=rings.yml: "
says "rings.rx of eth1 can't be written: Operation not permitted"
says "--partial"
[ -e /tmp/partial ] && fault "a refused experiment left a folder"
expect 0 su nobody -c 'polyrail experiment run /tmp/partial.yml --out /tmp/partial --partial'
says "left out: host_profile=rings.yml channels=2: "
says "8 blocks of 2 cells"
expect 2 polyrail host apply rings eth1 rx=0 --allow-disruptive --dry-run
says "leaves no room for packets; allowed: 1 "
expect 3 su nobody -c 'polyrail host apply rings eth1 rx=128'
says "CAP_NET_ADMIN"
sed -i /channels/d /tmp/partial.yml
expect 0 polyrail experiment run /tmp/partial.yml --out /tmp/whole
says "8 blocks of 2 cells"
finish

echo "@@ end $(cut -d' ' -f1 /proc/uptime)"
poweroff -f
