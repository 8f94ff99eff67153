#!/bin/bash
# One machine of the test cluster: process 1 in namespaces of its own (network, mounts, names,
# processes). machine.sh NAME, with ROOT (the cluster's folder), SHOWN (folders of the host to be
# seen at their place) and CLOSED (folders of the host that only root may enter, made enterable).
set -e
name=$1
etc=$ROOT/etc
hostname "$name"
mount --make-rprivate /
mount -t proc proc /proc
mount -t sysfs sysfs /sys # its own interfaces, and no control groups
ip link set lo up

# /tmp, /run and /dev/shm of its own; what is shown of the host is put aside meanwhile.
mount -t tmpfs tmpfs /mnt
i=0
for folder in "$ROOT" $SHOWN; do
  i=$((i + 1)); mkdir /mnt/$i; mount --rbind "$folder" /mnt/$i
done
for folder in /tmp /run /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs $folder; done
chmod 755 /run
for folder in $CLOSED; do
  mkdir -p "$folder"; mount -t tmpfs -o mode=755 tmpfs "$folder"
done
i=0
for folder in "$ROOT" $SHOWN; do
  i=$((i + 1)); mkdir -p "$folder"; mount --rbind /mnt/$i "$folder"
done
umount -R -l /mnt

# Accounts and names of the cluster; /home is the file system that all but the laptop share.
for file in passwd group shadow nsswitch.conf; do mount --bind "$etc/$file" /etc/$file; done
if [ "$name" = laptop ] || [ "$name" = switch ]; then
  mount --bind "$etc/hosts.laptop" /etc/hosts
else
  mount --bind "$etc/hosts" /etc/hosts
  mount --bind "$ROOT/home" /home
  mount --bind "$etc/slurm" /etc/slurm
fi
set +e
touch "$ROOT/run/$name.up"

start() {
  case $name in laptop | switch) return ;; esac
  install -d -o munge -g munge -m 0755 /run/munge
  runuser -u munge -- munged --key-file="$etc/munge.key" --log-file=/run/munge/munged.log \
    --seed-file=/run/munge/seed || return
  case $name in ctl) slurmctld ;; c*) slurmd ;; esac || return
  [ "$name" = ctl ] || { mkdir -p /run/sshd; /usr/sbin/sshd -f "$ROOT/ssh/sshd_config" -E "$ROOT/log/sshd-$name.log"; }
}
# The cable is plugged in from outside.
case $name in switch) ;; *) until [ -e /sys/class/net/eth0 ] && ip -4 addr show eth0 | grep -q inet; do sleep 0.02; done ;; esac
start && touch "$ROOT/run/$name.ready"

# Process 1 reaps what others leave behind.
trap : TERM INT HUP
while :; do sleep 86400 & wait $!; done
