package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/record/recordtest"
	"lightmetrics.dev/lightmetrics/internal/rollups/publish"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/services/coordinator/internal/ownership"
)

func TestMovesAreBounded(t *testing.T) {
	var moves []Move
	for i := range 300 {
		before := slices.Clone(moves)
		next := addMove(moves, Move{AtNS: int64(i)})
		if !slices.EqualFunc(before, moves, func(a, b Move) bool { return a.AtNS == b.AtNS }) {
			t.Fatal("addMove wrote to what it was given")
		}
		moves = next
	}
	if len(moves) != maxMoves || moves[len(moves)-1].AtNS != 299 || moves[0].AtNS != 200 {
		t.Errorf("%d moves, from %d to %d", len(moves), moves[0].AtNS, moves[len(moves)-1].AtNS)
	}
	for i := range 10 {
		moves = addMove(moves, Move{AtNS: int64(i), Shards: make([]shard.ID, shard.Max)})
	}
	if len(moves) != 2 {
		t.Errorf("%d moves of all shards are kept", len(moves))
	}
	if n := len(encode(movesRecord{moves})); n > 1<<20 {
		t.Errorf("%d bytes; etcd takes 1.5 MiB", n)
	}
}

func TestTargetsArePacked(t *testing.T) {
	in := []string{"b", "", "a", "b"}
	r := packTargets(in)
	out, err := r.unpack(4)
	if err != nil || !slices.Equal(in, out) {
		t.Errorf("%v, %v", out, err)
	}
	if _, err := r.unpack(5); err == nil {
		t.Error("targets of another number of shards")
	}
	r.Owners[0] = 2
	if _, err := r.unpack(4); err == nil {
		t.Error("a target without a name")
	}
	var long []string
	for i := range shard.Max {
		long = append(long, fmt.Sprintf("%0*d", ownership.MaxWorkerID, i%ownership.MaxWorkers))
	}
	if n := len(encode(packTargets(long))); n > 1<<20 {
		t.Errorf("%d bytes; etcd takes 1.5 MiB", n)
	}
}

func TestFencesGrow(t *testing.T) {
	var last ownership.Fence
	for _, f := range [][2]uint64{{0, 1}, {0, 1 << 30}, {1, 1}, {1, 2}, {2, 1}, {3, 1 << 39}, {maxTerm, 1}} {
		if n := fence(f[0], int64(f[1])); n <= last {
			t.Errorf("term %d, revision %d: fence %d after %d", f[0], f[1], n, last)
		} else {
			last = n
		}
	}
}

// TestKeysOfOthersAreLetBe: what is not ours, or can't be read, is left out, and the rest is read.
func TestStateFromKeys(t *testing.T) {
	k := keys{"/p"}
	m := &Mirror{keys: k, log: slog.New(slog.DiscardHandler)}
	states := map[ownership.Kind]*State{}
	put := func(key, value string, rev int64) {
		m.apply(states, key, &kv{Key: []byte(key), Value: []byte(value), ModRevision: rev, CreateRevision: rev})
	}
	put(k.shards(ownership.Rollup), encode(shardsRecord{2}), 1)
	put(k.session(ownership.Rollup, 7), strings.TrimSuffix(encode(sessionRecord{Worker: "w", Nonce: "n"}), "}")+`,"later":1}`, 2)
	put(k.targets(ownership.Rollup), encode(targetsRecord{Workers: []string{"w"}, Owners: []int{0, -1}}), 3)
	put(k.grant(ownership.Rollup, 0), encode(grantRecord{Worker: "w", Session: 7, Epoch: 5, Term: 1}), 4)
	put(k.grant(ownership.Rollup, 9), encode(grantRecord{Worker: "w", Session: 7, Epoch: 5}), 5)
	put(k.grant(ownership.Rollup, 1), `{`, 5)
	put(k.epoch(ownership.Rollup, 0), encode(epochRecord{Epoch: 5, Worker: "w", AtNS: 8}), 4)
	put(k.kind(ownership.Rollup)+"what", `{}`, 5)
	put(k.kind(ownership.Rollup)+"sessions/x", `{}`, 5)
	put(k.ownership()+"cook/shards", `{"shards":2}`, 5)
	put("/elsewhere", `{}`, 5)
	st := states[ownership.Rollup]
	if len(states) != 1 || st.Shards != 2 || len(st.Sessions) != 1 || st.Targets[0] != "w" || st.Targets[1] != "" || st.targetsRev != 3 {
		t.Fatalf("%+v", st)
	}
	if g := st.Grants[0]; g.Worker != "w" || g.Epoch != 5 || g.Fence != 1<<termBits+4 || st.Grants[1].Held() || st.Epochs[0].AtNS != 8 {
		t.Errorf("%+v, %+v", st.Grants, st.Epochs)
	}
	c := st.clone()
	must(t, c.apply(familyGrants, "0000", nil))
	must(t, c.apply(familySessions, fmt.Sprintf("%016x", 7), nil))
	if c.Grants[0].Held() || len(c.Sessions) != 0 || !st.Grants[0].Held() || len(st.Sessions) != 1 {
		t.Errorf("a change reached the state that was handed out: %+v, %+v", c, st)
	}
}

// lossy loses the answer of every third write.
type lossy struct {
	*mem.Store
	mu sync.Mutex
	n  int
}

func (l *lossy) lost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n++
	return l.n%3 == 0
}

func (l *lossy) Create(ctx context.Context, key string, b []byte, o objstore.PutOptions) (objstore.Info, error) {
	i, err := l.Store.Create(ctx, key, b, o)
	if l.lost() {
		return i, objstore.ErrUnknown
	}
	return i, err
}

func (l *lossy) Replace(ctx context.Context, key string, b []byte, etag string, o objstore.PutOptions) (objstore.Info, error) {
	i, err := l.Store.Replace(ctx, key, b, etag, o)
	if l.lost() {
		return i, objstore.ErrUnknown
	}
	return i, err
}

// TestTermsAreGivenOnce: to many at once, with answers lost.
func TestTermsAreGivenOnce(t *testing.T) {
	terms := StoreTerms{Store: &lossy{Store: mem.New(time.Now)}}
	var mu sync.Mutex
	given := map[uint64]bool{}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var last uint64
			for range 25 {
				n, err := terms.Next(context.Background())
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if given[n] || n <= last {
					t.Errorf("term %d after %d, given before: %v", n, last, given[n])
				}
				given[n] = true
				mu.Unlock()
				last = n
			}
		})
	}
	wg.Wait()
}

func TestTermsThatAreUsedUpOrDamaged(t *testing.T) {
	good := string(TermKind.Marshal(Term{4}))
	for body, want := range map[string]error{
		string(TermKind.Marshal(Term{maxTerm})): nil,
		strings.Replace(good, "4}", "-4}", 1):   record.ErrCorrupt,
		`[`:                                     record.ErrCorrupt,
		strings.Replace(good, "term.v1", "term.v2", 1): record.ErrNewerVersion,
	} {
		store := mem.New(time.Now)
		_, err := store.Create(context.Background(), "coordinator/v1/term.json", []byte(body), objstore.PutOptions{})
		must(t, err)
		n, err := (StoreTerms{Store: store}).Next(context.Background())
		if err == nil || !errors.Is(err, want) && want != nil {
			t.Errorf("%s: gives %d, %v", body, n, err)
		}
		if b, _, err := store.Get(context.Background(), "coordinator/v1/term.json", objstore.GetOptions{}); err != nil || string(b) != body {
			t.Errorf("%s: now there is %s, %v", body, b, err)
		}
	}
}

func TestSettingsAreRefused(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"etcd.prefix":             func(c *Config) { c.Prefix = "x" },
		"request_timeout":         func(c *Config) { c.RequestTimeout = 0 },
		"go together":             func(c *Config) { c.Endpoints, c.Username = []string{"http://a:1"}, "u" },
		"needs etcd.tls.enabled":  func(c *Config) { c.Endpoints = []string{"https://a:1"} },
		"must begin with https":   func(c *Config) { c.Endpoints, c.TLS.Enabled = []string{"http://a:1"}, true },
		"for an external etcd":    func(c *Config) { c.TLS.Enabled = true },
		"need peer_tls":           func(c *Config) { c.Embedded.Cluster = []string{"coordinator=127.0.0.1:1", "b=127.0.0.1:2"} },
		"name of a socket":        func(c *Config) { c.Embedded.DataDir = strings.Repeat("x", 100) },
		"is not in it":            func(c *Config) { c.Embedded.Cluster = []string{"a=127.0.0.1:1"} },
		"want name=host:port":     func(c *Config) { c.Embedded.Cluster = []string{"a"} },
		"cluster[1]: \"b\":":      func(c *Config) { c.Embedded.Cluster = []string{"coordinator=a:1", "b=b"} },
		"without a scheme":        func(c *Config) { c.Embedded.Cluster = []string{"coordinator=a:1", "b=https://b:1"} },
		`"b=a:1": another member`: func(c *Config) { c.Embedded.Cluster = []string{"coordinator=a:1", "b=a:1"} },
		`"b=A:1": another member`: func(c *Config) { c.Embedded.Cluster = []string{"coordinator=a:1", "b=A:1"} },
		`"b=c:1": another member`: func(c *Config) { c.Embedded.Cluster = []string{"coordinator=a:1", "b=b:1", "b=c:1"} },
		"quota":                   func(c *Config) { c.Embedded.Quota = 1 },
		"compaction":              func(c *Config) { c.Embedded.Compaction = 0 },
		"election_timeout":        func(c *Config) { c.Embedded.ElectionTimeout = time.Millisecond },
		"data_dir":                func(c *Config) { c.Embedded.DataDir = "" },
	} {
		c := DefaultConfig()
		must(t, c.Validate())
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestZapGoesToSlog(t *testing.T) {
	var b strings.Builder
	h := slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelInfo})
	log := zap.New(zapToSlog{h: h}).With(zap.Int("n", 1))
	log.Info("not shown")
	log.Warn("shown", zap.Error(errors.New("why")), zap.Duration("took", time.Second))
	log.Warn("simple token is not cryptographically signed")
	if s := b.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, `level=WARN msg=shown n=1 error=why took=1s`) {
		t.Errorf("%s", s)
	}
}

// Every value in etcd, and the one in the bucket, is a record whose versions stay readable.
func TestRecords(t *testing.T) {
	digest := strings.Repeat("0a", 32)
	recordtest.Run(t, []recordtest.Kind{
		recordtest.Plain(TermKind, Term{7}),
		recordtest.Plain(shardsKind, shardsRecord{4}),
		recordtest.Plain(sessionKind, sessionRecord{Worker: "w", Address: "a:1", Principal: "p", Nonce: "n", SinceNS: 5, Draining: true}),
		recordtest.Plain(targetsKind, packTargets([]string{"b", "", "a", "b"})),
		recordtest.Plain(grantKind, grantRecord{Worker: "w", Session: 7, Epoch: 5, Term: 1}),
		recordtest.Plain(epochKind, epochRecord{Epoch: 5, Worker: "w", AtNS: 8}),
		recordtest.Plain(movesKind, movesRecord{[]Move{{AtNS: 5, Joined: []string{"w"}, Left: []string{"v"}, Workers: 1, Shards: []shard.ID{2}}}}),
		recordtest.Plain(messageKind, message{Body: []byte("x"), Tries: 2, Dedupe: "d", Reason: "r", Buried: 5}),
		recordtest.Plain(hiddenKind, hidden{Receipt: "r", Seconds: 5}),
		recordtest.Plain(rowKind, rowRecord{Topic: "t", Body: []byte("x"), Created: 4, Modified: 5, Active: true, Owner: "o", Attempts: 2, State: []byte("s"), Fence: 3}),
		recordtest.Plain(holdKind, hold{Owner: "o", Seconds: 5}),
		recordtest.Plain(logKind, logRecord{Last: 4, Completed: 5, Fence: 3, Result: []byte("x")}),
		recordtest.Plain(refsKind, base{Txns: []publish.Txn{publish.Txn(digest)}, Condemned: true}),
		recordtest.Plain(refEpochKind, refEpoch{publish.Epoch{Number: 2, ID: digest[:32], Decided: true}}),
	})
}
