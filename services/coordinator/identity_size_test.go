package coordinator

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// Sizes of BenchmarkClaimsSize: boots that send a batch every sizeEvery of a clock that the benchmark moves, sizeStep batches at a time.
const (
	sizeBoots = 256
	sizeEvery = 30 * time.Second
	sizeStep  = 4
)

// BenchmarkClaimsSize measures what a boot takes in etcd while its identities are claimed, completed, settled and folded, with default
// settings: after a quarter of them, a half and all. LIGHTMETRICS_IDENTITIES is how many there are of all boots.
func BenchmarkClaimsSize(b *testing.B) {
	total := 131_072
	if v := os.Getenv("LIGHTMETRICS_IDENTITIES"); v != "" {
		var err error
		total, err = strconv.Atoi(v)
		must(b, err)
	}
	buckets := threeBuckets()
	var ahead atomic.Int64
	now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	c := withRegions(quick(b.TempDir()), buckets)
	c.Etcd.Embedded.Quota = 4 << 30 // compaction is by the real clock
	r := startWith(b, c, Deps{Regions: stores(buckets), Now: now})
	r.openedEpoch(1)
	until(b, "a coordinator to recover and fold", func() bool { return r.back.Load().recoverer.Chosen() })
	s := &sizes{b: b, r: r, now: now}
	for b.Loop() {
		empty := s.take()
		// The boots did not begin at once, so that they are not folded at once: they are so many steps apart as a fold takes.
		for k := range foldLeast / sizeStep {
			s.step(func(boot int) bool { return boot%(foldLeast/sizeStep) > k })
			ahead.Add(int64(sizeStep * sizeEvery))
		}
		each := max(total/sizeBoots, 8*foldLeast) / sizeStep * sizeStep
		next, least, most := each/4, 0.0, 0.0
		for done := 0; done < each; {
			s.step(nil)
			ahead.Add(int64(sizeStep * sizeEvery))
			v := r.back.Load().identities
			_, err := v.foldOld(b.Context(), v.open.Load())
			must(b, err)
			if done += sizeStep; done < next {
				continue
			}
			next *= 2
			at := s.take()
			perBoot := float64(at.inUse-empty.inUse) / sizeBoots
			b.ReportMetric(perBoot, fmt.Sprintf("B/boot@%d", done))
			if least == 0 || perBoot < least {
				least = perBoot
			}
			most = max(most, perBoot)
			// The last ones stay.
			b.ReportMetric(float64(at.claims)/sizeBoots, "claims/boot")
			b.ReportMetric(float64(at.logical-empty.logical)/sizeBoots, "logical-B/boot")
			b.ReportMetric(float64(at.inUse-empty.inUse)/float64(max(at.claims, 1)), "B/claim")
			if !at.alone {
				b.ReportMetric(float64(at.history)/float64(s.ids-s.compacted), "history-B/identity")
			}
			s.compacted = s.ids
		}
		b.ReportMetric(most/least, "most/least")
		b.ReportMetric(float64(each), "each")
	}
}

// sizes accepts batches and measures etcd.
type sizes struct {
	b   *testing.B
	r   *running
	now func() time.Time
	// seq is how many batches a boot had; ids of them all, and compacted those before the last compaction.
	seq            [sizeBoots]uint64
	ids, compacted uint64
	compactedAt    time.Time
}

// step brings the next batches of these boots, nil for all, to their end.
func (s *sizes) step(of func(boot int) bool) {
	s.b.Helper()
	var ops []claims.Op
	for boot := range sizeBoots {
		if of != nil && !of(boot) {
			continue
		}
		for range sizeStep {
			from := s.seq[boot] * 100
			s.seq[boot]++
			o := claims.Op{Kind: claims.DoClaim, Hash: identity.Sum([]byte("frame")), Region: "eu", At: s.now().UnixNano(),
				Identity: identity.Batch{Agent: fmt.Sprintf("host-%05d", boot), Boot: "0190b5a2-7f3e-7c41-9d6a-2f1c8e5b7a90", SeqStart: from + 1, SeqEnd: from + 100}}
			s.ids++
			binary.BigEndian.PutUint64(o.ID[:], s.ids)
			ops = append(ops, o)
		}
	}
	for _, k := range []claims.Kind{claims.DoClaim, claims.DoComplete, claims.DoSettle} {
		for i := range ops {
			if ops[i].Kind = k; k != claims.DoClaim {
				ops[i].Epoch = 1
			}
		}
		for i, got := range s.r.back.Load().identities.Do(s.b.Context(), ops) {
			if want := map[bool]claims.Outcome{true: claims.Held, false: claims.Decided}[k == claims.DoClaim]; got.Err != nil || got.Answer.Outcome != want {
				s.b.Fatalf("%s %s: %s %v", k, ops[i].Identity, got.Answer.Outcome, got.Err)
			}
		}
	}
}

// size of etcd, without what it only keeps until it is compacted.
type size struct {
	inUse, logical int64
	// history is what a compaction freed.
	history int64
	claims  int
	// alone: etcd may have compacted by itself since the last measurement, so that history says too little.
	alone bool
}

func (s *sizes) take() (at size) {
	s.b.Helper()
	ctx, c := s.b.Context(), s.r.back.Load().client
	prefix := s.r.cfg.Identity.Prefix + claimKeys
	end := clientv3.GetPrefixRangeEnd(prefix)
	var revision int64
	for from := prefix; ; {
		got, err := c.Etcd.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(5000))
		must(s.b, err)
		revision = got.Header.Revision
		for _, kv := range got.Kvs {
			at.logical += int64(len(kv.Key) + len(kv.Value))
			if _, _, err := s.r.back.Load().identities.keys.ParseClaim(string(kv.Key)); err == nil {
				at.claims++
			}
			from = string(kv.Key) + "\x00"
		}
		if !got.More {
			break
		}
	}
	at.alone = time.Since(s.compactedAt) >= s.r.cfg.Etcd.Embedded.Compaction
	before, err := c.Etcd.Status(ctx, c.Etcd.Endpoints()[0])
	must(s.b, err)
	_, err = c.Etcd.Compact(ctx, revision, clientv3.WithCompactPhysical())
	must(s.b, err)
	_, err = c.Etcd.Defragment(ctx, c.Etcd.Endpoints()[0])
	must(s.b, err)
	st, err := c.Etcd.Status(ctx, c.Etcd.Endpoints()[0])
	must(s.b, err)
	at.inUse, at.history, s.compactedAt = st.DbSizeInUse, before.DbSizeInUse-st.DbSizeInUse, time.Now()
	return at
}
