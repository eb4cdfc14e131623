package host

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/shirou/gopsutil/v4/disk"
)

// File systems without data of their own, and those whose server can hang a reader.
var excludedTypes = []string{
	"autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs",
	"fusectl", "hugetlbfs", "iso9660", "mqueue", "nsfs", "proc", "procfs", "pstore", "rpc_pipefs", "securityfs",
	"selinuxfs", "squashfs", "sysfs", "tracefs",
	"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "afs", "9p",
}

var excludedMounts = []string{"/dev", "/proc", "/sys", "/run/credentials", "/var/lib/docker", "/var/lib/containers/storage", "/var/lib/kubelet"}

// maxFilesystems bounds what a machine with endless mounts makes.
const maxFilesystems = 256

func readDiskstats(ctx context.Context, h *Host) error {
	devs, err := disk.IOCountersWithContext(ctx)
	if err != nil {
		return fmt.Errorf("disks: %w", err)
	}
	for name, d := range devs {
		if hasPrefix(name, []string{"loop", "ram", "fd", "sr"}) {
			continue
		}
		l := []string{"device", name}
		h.counter("node_disk_reads_completed_total", float64(d.ReadCount), l...)
		h.counter("node_disk_reads_merged_total", float64(d.MergedReadCount), l...)
		h.counter("node_disk_read_bytes_total", float64(d.ReadBytes), l...)
		h.counter("node_disk_read_time_seconds_total", float64(d.ReadTime)/1e3, l...)
		h.counter("node_disk_writes_completed_total", float64(d.WriteCount), l...)
		h.counter("node_disk_writes_merged_total", float64(d.MergedWriteCount), l...)
		h.counter("node_disk_written_bytes_total", float64(d.WriteBytes), l...)
		h.counter("node_disk_write_time_seconds_total", float64(d.WriteTime)/1e3, l...)
		h.counter("node_disk_io_time_seconds_total", float64(d.IoTime)/1e3, l...)
		h.counter("node_disk_io_time_weighted_seconds_total", float64(d.WeightedIO)/1e3, l...)
		h.gauge("node_disk_io_now", float64(d.IopsInProgress), l...)
	}
	return nil
}

func readFilesystem(ctx context.Context, h *Host) error {
	parts, err := disk.PartitionsWithContext(ctx, true)
	if err != nil {
		return fmt.Errorf("mounts: %w", err)
	}
	seen := map[string]bool{}
	for _, p := range parts {
		if seen[p.Mountpoint] || len(seen) >= maxFilesystems || h.excluded(p) {
			continue
		}
		seen[p.Mountpoint] = true
		l := []string{"device", p.Device, "fstype", p.Fstype, "mountpoint", p.Mountpoint}
		u, err := disk.UsageWithContext(ctx, p.Mountpoint)
		if err != nil {
			h.gauge("node_filesystem_device_error", 1, l...)
			continue
		}
		ro := 0.0
		if slices.Contains(p.Opts, "ro") {
			ro = 1
		}
		h.gauge("node_filesystem_device_error", 0, l...)
		h.gauge("node_filesystem_size_bytes", float64(u.Total), l...)
		h.gauge("node_filesystem_free_bytes", float64(u.Total-min(u.Total, u.Used)), l...)
		h.gauge("node_filesystem_avail_bytes", float64(u.Free), l...)
		h.gauge("node_filesystem_files", float64(u.InodesTotal), l...)
		h.gauge("node_filesystem_files_free", float64(u.InodesFree), l...)
		h.gauge("node_filesystem_readonly", ro, l...)
	}
	return nil
}

func (h *Host) excluded(p disk.PartitionStat) bool {
	// In a container the root is an overlay, and all that there is.
	if p.Fstype == "overlay" && p.Mountpoint != "/" {
		return true
	}
	if slices.Contains(excludedTypes, p.Fstype) || slices.Contains(h.cfg.FilesystemTypesExclude, p.Fstype) ||
		strings.HasPrefix(p.Fstype, "fuse.") {
		return true
	}
	for _, list := range [][]string{excludedMounts, h.cfg.MountPointsExclude} {
		for _, m := range list {
			if p.Mountpoint == m || strings.HasPrefix(p.Mountpoint, strings.TrimSuffix(m, "/")+"/") {
				return true
			}
		}
	}
	return false
}
