package tsbs

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
)

// Step between samples, and the first timestamp of a generated data set, both ms.
const (
	StepMS  = 10_000
	StartMS = 1_795_212_000_000
)

// kind is how a generated series moves.
type kind uint8

const (
	percent kind = iota // a random walk of integers within 0 to 100
	slow                // a counter that grows by about 5 a step
	fast                // a counter that grows by about 50 a step
	huge                // as fast, from 8 GiB on
	random              // bytes, uniform
	ratio               // a share of 100 with all digits
	fixed               // a constant
)

// measurements are those of the TSBS devops case, 101 series a host.
var measurements = []struct {
	prefix string
	kind   kind
	fields string
	extra  []Label
}{
	{"cpu", percent, "usage_user usage_system usage_idle usage_nice usage_iowait usage_irq usage_softirq usage_steal usage_guest usage_guest_nice", nil},
	{"diskio", fast, "reads writes read_bytes write_bytes read_time write_time io_time", []Label{{"serial", "694-511-162"}}},
	{"disk", fixed, "total inodes_total inodes_free inodes_used", []Label{{"fstype", "ext4"}, {"path", "/dev/sda1"}}},
	{"disk", huge, "free used", []Label{{"fstype", "ext4"}, {"path", "/dev/sda1"}}},
	{"disk", percent, "used_percent", []Label{{"fstype", "ext4"}, {"path", "/dev/sda1"}}},
	{"kernel", fixed, "boot_time", nil},
	{"kernel", slow, "interrupts context_switches processes_forked disk_pages_in disk_pages_out", nil},
	{"mem", fixed, "total", nil},
	{"mem", random, "available used free cached buffered", nil},
	{"mem", ratio, "used_percent available_percent buffered_percent", nil},
	{"net", fast, "bytes_sent bytes_recv packets_sent packets_recv", []Label{{"interface", "eth0"}}},
	{"net", slow, "err_in err_out drop_in drop_out", []Label{{"interface", "eth0"}}},
	{"nginx", slow, "accepts active handled reading requests waiting writing", []Label{{"port", "14729"}, {"server", "nginx_65466"}}},
	{"postgresl", slow, "numbackends xact_commit xact_rollback blks_read blks_hit tup_returned tup_fetched tup_inserted tup_updated tup_deleted conflicts temp_files temp_bytes deadlocks blk_read_time blk_write_time", nil},
	{"redis", fast, "uptime_in_seconds total_connections_received expired_keys evicted_keys keyspace_hits keyspace_misses connected_clients", []Label{{"port", "6379"}, {"server", "redis_54452"}}},
	{"redis", percent, "instantaneous_ops_per_sec instantaneous_input_kbps instantaneous_output_kbps", []Label{{"port", "6379"}, {"server", "redis_54452"}}},
	{"redis", huge, "used_memory used_memory_rss used_memory_peak used_memory_lua", []Label{{"port", "6379"}, {"server", "redis_54452"}}},
	{"redis", slow, "rdb_changes_since_last_save sync_full sync_partial_ok sync_partial_err pubsub_channels pubsub_patterns latest_fork_usec connected_slaves master_repl_offset repl_backlog_active repl_backlog_size repl_backlog_histlen mem_fragmentation_ratio used_cpu_sys used_cpu_user used_cpu_sys_children used_cpu_user_children", []Label{{"port", "6379"}, {"server", "redis_54452"}}},
}

// SeriesPerHost is the number of series of a generated host.
const SeriesPerHost = 101

// Generate makes hosts with SeriesPerHost series of steps samples each. Equal
// arguments give equal data, and host k does not depend on the number of hosts.
func Generate(seed uint64, hosts, steps int) *Dataset {
	timestamps := make([]int64, steps)
	for i := range timestamps {
		timestamps[i] = StartMS + int64(i)*StepMS
	}
	d := &Dataset{Series: make([]Series, 0, hosts*SeriesPerHost)}
	for h := range hosts {
		rng := rand.New(rand.NewPCG(seed, uint64(h)))
		tags := hostTags(rng, h)
		for _, m := range measurements {
			for _, field := range strings.Fields(m.fields) {
				labels := slices.Concat(tags, m.extra, []Label{{"__name__", m.prefix + "_" + field}})
				slices.SortFunc(labels, func(a, b Label) int { return strings.Compare(a.Name, b.Name) })
				d.Series = append(d.Series, Series{labels, timestamps, values(rng, m.kind, steps)})
			}
		}
	}
	return d
}

func hostTags(rng *rand.Rand, host int) []Label {
	pick := func(s ...string) string { return s[rng.IntN(len(s))] }
	region := pick("us-east-1", "us-west-2", "eu-west-1", "eu-central-1", "ap-southeast-1", "sa-east-1")
	return []Label{
		{"arch", pick("x64", "x86")},
		{"datacenter", region + pick("a", "b", "c")},
		{"hostname", fmt.Sprintf("host_%d", host)},
		{"os", pick("Ubuntu16.10", "Ubuntu16.04LTS", "Ubuntu15.10")},
		{"rack", fmt.Sprint(rng.IntN(100))},
		{"region", region},
		{"service", fmt.Sprint(rng.IntN(20))},
		{"service_environment", pick("production", "staging", "test")},
		{"service_version", fmt.Sprint(rng.IntN(2))},
		{"team", pick("SF", "NYC", "LON", "CHI")},
	}
}

func values(rng *rand.Rand, k kind, steps int) []float64 {
	out := make([]float64, steps)
	x := 0.0
	switch k {
	case percent:
		x = 100 * rng.Float64()
	case huge:
		x = 8 << 30
	case fixed:
		x = float64(uint64(1) << (10 + rng.IntN(30)))
	}
	for i := range out {
		switch k {
		case random:
			out[i] = math.Trunc(7e9 + 1e9*rng.Float64())
			continue
		case ratio:
			out[i] = 100 * rng.Float64()
			continue
		}
		out[i] = math.Trunc(x)
		switch k {
		case percent:
			x = min(100, max(0, x+rng.NormFloat64()))
		case slow:
			x += max(0, 5+rng.NormFloat64())
		case fast, huge:
			x += max(0, 50+rng.NormFloat64())
		}
	}
	return out
}
