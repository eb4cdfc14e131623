package host

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/host"
	"github.com/shirou/gopsutil/v4/load"
	"github.com/shirou/gopsutil/v4/mem"
	"github.com/shirou/gopsutil/v4/net"

	"lightmetrics.dev/lightmetrics/pkg/series"
)

func readCPU(ctx context.Context, h *Host) error {
	times, err := cpu.TimesWithContext(ctx, true)
	if err != nil {
		return fmt.Errorf("cpu times: %w", err)
	}
	for _, t := range times {
		n := strings.TrimPrefix(t.CPU, "cpu")
		for _, m := range []struct {
			mode string
			v    float64
		}{
			{"user", t.User}, {"system", t.System}, {"idle", t.Idle}, {"nice", t.Nice}, {"iowait", t.Iowait},
			{"irq", t.Irq}, {"softirq", t.Softirq}, {"steal", t.Steal},
		} {
			h.counter("node_cpu_seconds_total", m.v, "cpu", n, "mode", m.mode)
		}
		h.counter("node_cpu_guest_seconds_total", t.Guest, "cpu", n, "mode", "user")
		h.counter("node_cpu_guest_seconds_total", t.GuestNice, "cpu", n, "mode", "nice")
	}
	return nil
}

func readLoad(ctx context.Context, h *Host) error {
	avg, err := load.AvgWithContext(ctx)
	if err != nil {
		return fmt.Errorf("load averages: %w", err)
	}
	h.gauge("node_load1", avg.Load1)
	h.gauge("node_load5", avg.Load5)
	h.gauge("node_load15", avg.Load15)
	misc, err := load.MiscWithContext(ctx)
	if err != nil {
		return fmt.Errorf("processes: %w", err)
	}
	h.gauge("node_procs_running", float64(misc.ProcsRunning))
	h.gauge("node_procs_blocked", float64(misc.ProcsBlocked))
	h.counter("node_context_switches_total", float64(misc.Ctxt))
	return nil
}

func readMemory(ctx context.Context, h *Host) error {
	m, err := mem.VirtualMemoryWithContext(ctx)
	if err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	for _, g := range []struct {
		name string
		v    uint64
	}{
		{"MemTotal", m.Total}, {"MemFree", m.Free}, {"MemAvailable", m.Available}, {"Buffers", m.Buffers},
		{"Cached", m.Cached - min(m.Cached, m.Sreclaimable)}, // gopsutil adds SReclaimable
		{"SwapCached", m.SwapCached}, {"Active", m.Active}, {"Inactive", m.Inactive},
		{"SwapTotal", m.SwapTotal}, {"SwapFree", m.SwapFree}, {"Dirty", m.Dirty}, {"Writeback", m.WriteBack},
		{"Mapped", m.Mapped}, {"Shmem", m.Shared}, {"Slab", m.Slab}, {"SReclaimable", m.Sreclaimable},
		{"SUnreclaim", m.Sunreclaim}, {"PageTables", m.PageTables}, {"CommitLimit", m.CommitLimit}, {"Committed_AS", m.CommittedAS},
	} {
		h.gauge("node_memory_"+g.name+"_bytes", float64(g.v))
	}
	return nil
}

// swapPage is the page size by which gopsutil multiplies.
const swapPage = 4096

func readSwap(ctx context.Context, h *Host) error {
	s, err := mem.SwapMemoryWithContext(ctx)
	if err != nil {
		return fmt.Errorf("swap: %w", err)
	}
	h.counter("node_vmstat_pswpin", float64(s.Sin/swapPage))
	h.counter("node_vmstat_pswpout", float64(s.Sout/swapPage))
	return nil
}

func readNetwork(ctx context.Context, h *Host) error {
	devs, err := net.IOCountersWithContext(ctx, true)
	if err != nil {
		return fmt.Errorf("network devices: %w", err)
	}
	for _, d := range devs {
		if hasPrefix(d.Name, h.cfg.NetworkExclude) {
			continue
		}
		for _, c := range []struct {
			name string
			v    uint64
		}{
			{"receive_bytes", d.BytesRecv}, {"receive_packets", d.PacketsRecv}, {"receive_errs", d.Errin}, {"receive_drop", d.Dropin},
			{"receive_fifo", d.Fifoin}, {"transmit_bytes", d.BytesSent}, {"transmit_packets", d.PacketsSent},
			{"transmit_errs", d.Errout}, {"transmit_drop", d.Dropout}, {"transmit_fifo", d.Fifoout},
		} {
			h.counter("node_network_"+c.name+"_total", float64(c.v), "device", d.Name)
		}
	}
	return nil
}

func readTime(ctx context.Context, h *Host) error {
	boot, err := host.BootTimeWithContext(ctx)
	if err != nil {
		return fmt.Errorf("boot time: %w", err)
	}
	h.gauge("node_boot_time_seconds", float64(boot))
	h.gauge("node_time_seconds", float64(h.at)/1e9)
	return nil
}

func readUname(ctx context.Context, h *Host) error {
	i, err := host.InfoWithContext(ctx)
	if err != nil {
		return fmt.Errorf("system: %w", err)
	}
	h.add(series.Info, "node_uname_info", 1, []string{"sysname", i.OS, "release", i.KernelVersion, "machine", i.KernelArch,
		"nodename", i.Hostname, "platform", i.Platform, "platform_version", i.PlatformVersion})
	return nil
}

func readProcess(ctx context.Context, h *Host) error {
	var errs []error
	t, err := h.self.TimesWithContext(ctx)
	if err == nil {
		h.counter("process_cpu_seconds_total", t.User+t.System)
	}
	m, merr := h.self.MemoryInfoWithContext(ctx)
	if merr == nil {
		h.gauge("process_resident_memory_bytes", float64(m.RSS))
		h.gauge("process_virtual_memory_bytes", float64(m.VMS))
	}
	n, ferr := h.self.NumFDsWithContext(ctx)
	if ferr == nil {
		h.gauge("process_open_fds", float64(n))
	}
	start, serr := h.self.CreateTimeWithContext(ctx)
	if serr == nil {
		h.gauge("process_start_time_seconds", float64(start)/1e3)
	}
	errs = append(errs, err, merr, ferr, serr)
	return errors.Join(errs...)
}

func hasPrefix(s string, prefixes []string) bool {
	for _, p := range prefixes {
		if p != "" && strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}
