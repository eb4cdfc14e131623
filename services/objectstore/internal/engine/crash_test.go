package engine

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/cryptotest"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/seal"
)

// workload is a random history by seed: bodies in the log and in files, conditional
// creates, replacements, deletes, tags, policies, several clients a batch, segment rolls, reclaim, flushes.
func workload(s *session, seed uint64, steps int) error {
	rng := rand.New(rand.NewPCG(seed, 2))
	key := func() string { return crashKeys[rng.IntN(len(crashKeys))] }
	made := 0
	etag := func() string { made++; return fmt.Sprintf("%d-%d", seed, made) }
	put := func() call {
		size := rng.IntN(1500)
		switch rng.IntN(8) {
		case 0:
			size = 2049 + rng.IntN(4000)
		case 1:
			size = 0
		}
		c := Cond{}
		if rng.IntN(3) == 0 {
			c.Absent = true
		}
		return putCall(key(), pattern(size, byte(rng.Uint32())), etag(), c)
	}
	for range steps {
		var calls []call
		n := rng.IntN(20)
		if seed%2 == 0 && rng.IntN(2) == 0 {
			n = 20
		} else if rng.IntN(8) == 0 {
			n = 21
		}
		switch n {
		case 21:
			calls = holdStep(s, rng, key, etag)
		case 20:
			calls = versionStep(s, rng, key, etag)
		case 14, 15, 16, 17, 18:
			calls = uploadStep(s, rng, key, etag)
		case 19:
			calls = []call{sweepCall()}
			if keys := s.e.opt.Keys; keys != nil && rng.IntN(2) == 0 {
				calls = []call{rotateCall(otherKey(keys))}
			}
		case 0:
			calls = []call{sealCall(), reclaimCall()}
			if crashCodes.Load() {
				// Each by itself: to settle a segment takes flushes, which share no batch, and waits for a reclaim that has begun.
				if err := errors.Join(s.together(sealCall())[0], s.together(codeCall())[0]); err != nil && !errors.Is(err, os.ErrNotExist) {
					return err
				}
				calls = []call{reclaimCall()}
			}
		case 1:
			calls = []call{policyCall(etag())}
		case 2:
			calls = []call{flushCall()}
		case 3:
			calls = []call{tagCall(key(), etag())}
		case 4, 5:
			for range 1 + rng.IntN(3) {
				calls = append(calls, deleteCall(key()))
			}
		case 6: // a race of conditional creates of one key
			k := key()
			for i := range 3 {
				calls = append(calls, putCall(k, pattern(100+i, byte(i)), etag(), Cond{Absent: true}))
			}
		default:
			for range 1 + rng.IntN(4) {
				calls = append(calls, put())
			}
		}
		if crashQuotas.Load() && rng.IntN(6) == 0 {
			calls = []call{quotaCall(s, rng)}
		}
		for _, err := range s.together(calls...) {
			if err != nil && !errors.Is(err, ErrPrecondition) && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, ErrNoUpload) && !errors.Is(err, ErrPartChanged) && !errors.Is(err, ErrLocked) && !errors.Is(err, ErrQuota) {
				return err
			}
		}
	}
	return nil
}

// uploadStep does something of a multipart upload: begins one, stores parts, completes or aborts one, or several of these
// in one batch.
func uploadStep(s *session, rng *rand.Rand, key, etag func() string) (calls []call) {
	var open []string
	for _, k := range slices.Sorted(maps.Keys(s.now())) {
		if _, _, ok := parseUploadKey(k); ok {
			open = append(open, k)
		}
	}
	if len(open) == 0 || len(open) < 3 && rng.IntN(4) == 0 {
		return []call{uploadCall(key())}
	}
	k, id, _ := parseUploadKey(open[rng.IntN(len(open))])
	part := func() call {
		return partCall(k, id, 1+rng.IntN(3), pattern(rng.IntN(3000), byte(rng.Uint32())), etag())
	}
	switch rng.IntN(6) {
	case 0:
		return []call{completeCall(k, id, etag(), Cond{Absent: rng.IntN(2) == 0})}
	case 1: // others write the key, and complete the upload as well
		return []call{putCall(k, pattern(90, 7), etag(), Cond{Absent: true}), completeCall(k, id, etag(), Cond{Absent: true}), completeCall(k, id, etag(), Cond{})}
	case 2:
		return []call{abortCall(k, id)}
	}
	for range 1 + rng.IntN(2) {
		calls = append(calls, part())
	}
	return calls
}

// otherKey gives the same keys with another current one.
func otherKey(keys *seal.Keys) *seal.Keys {
	var list []*seal.Key
	current := ""
	for _, v := range keys.Versions() {
		k, _ := keys.Find(v)
		if list = append(list, k); k != keys.Current() {
			current = v.ID
		}
	}
	other, err := seal.NewKeys(current, list...)
	if err != nil {
		panic(err)
	}
	return other
}

// matrix counts what was tried, and keeps the first failures.
type matrix struct {
	states, nested atomic.Int64
	mu             sync.Mutex
	failures       []string
}

// count gives how many disks were opened after a crash.
func (m *matrix) count() int64 { return m.states.Load() + m.nested.Load() }

func (m *matrix) fail(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.failures) < 5 {
		m.failures = append(m.failures, fmt.Sprintf(format, args...))
	}
}

func (m *matrix) failed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.failures) > 0
}

func trail(w *crashfs.Walker) string {
	var b strings.Builder
	for _, o := range w.Last(25) {
		fmt.Fprintf(&b, "\n    %s", o)
	}
	return b.String()
}

// explore tries crashes behind every call of a session.
func (m *matrix) explore(s *session, seed uint64, perCall int, pool *workers) {
	w := s.fs.Walk()
	seen := map[[2]uint64]bool{}
	for ok := true; ok && !m.failed(); ok = w.Step() {
		least, most := s.bounds(w.At())
		for i := range perCall {
			model := crashfs.Model(min(i, 2))
			if i > 2 && i%3 != 2 {
				model = crashfs.Strict
			}
			id := seed<<32 + uint64(w.At())<<8 + uint64(i)
			f := w.Crash(model, id)
			print := [2]uint64{f.Fingerprint(), uint64(least)<<32 + uint64(most)}
			if seen[print] {
				continue // the same disk, and the same is asked of it
			}
			seen[print] = true
			at, last := w.At(), trail(w)
			pool.jobs <- func() {
				m.state(f, s.worlds, least, most, id, func(err error) {
					m.fail("seed %d, behind call %d of %d, %s, disk %d: %v%s", seed, at, w.Len(), model, id, err, last)
				})
			}
		}
		if w.At()%8 == 0 { // and with the index gone
			f, at, id := w.Crash(crashfs.Strict, seed+uint64(w.At())), w.At(), seed+uint64(w.At())
			if err := f.RemoveAll("index"); err != nil {
				m.fail("remove the index: %v", err)
			}
			pool.jobs <- func() {
				m.state(f, s.worlds, least, most, id, func(err error) {
					m.fail("seed %d, behind call %d of %d, index removed: %v", seed, at, w.Len(), err)
				})
			}
		}
		if w.At()%3 == 0 {
			f, at, last := w.Kill(), w.At(), trail(w)
			pool.jobs <- func() {
				m.killed(f, s.worlds, least, most, seed+uint64(at), func(err error) {
					m.fail("seed %d, killed behind call %d of %d: %v%s", seed, at, w.Len(), err, last)
				})
			}
		}
	}
}

// state checks one disk; then it cuts recovery off as well, and sometimes goes on writing.
func (m *matrix) state(f *crashfs.FS, worlds []world, least, most int, seed uint64, fail func(error)) {
	m.states.Add(1)
	shown, e, err := check(f, worlds, least, most)
	if err != nil {
		fail(err)
		return
	}
	rng := rand.New(rand.NewPCG(seed, 3))
	defer func() { e.abandon() }()
	if rng.IntN(4) == 0 {
		m.again(f, 0, worlds, least, most, shown, rng, fail)
	}
	if rng.IntN(8) == 0 {
		m.goOn(&session{fs: f, e: e, worlds: []world{worlds[shown]}}, rng, fail)
	}
}

// killed opens the disk that a killed process leaves, then the power goes as well.
func (m *matrix) killed(f *crashfs.FS, worlds []world, least, most int, seed uint64, fail func(error)) {
	m.states.Add(1)
	from := f.Len()
	shown, e, err := check(f, worlds, least, most)
	if err != nil {
		fail(err)
		return
	}
	defer func() { e.abandon() }()
	rng := rand.New(rand.NewPCG(seed, 4))
	m.again(f, from, worlds, least, most, shown, rng, fail)
	m.goOn(&session{fs: f, e: e, worlds: []world{worlds[shown]}}, rng, fail)
}

// again crashes within a recovery, whose calls begin behind from, and right behind it.
// What recovery has shown must stay.
func (m *matrix) again(f *crashfs.FS, from int, worlds []world, least, most, shown int, rng *rand.Rand, fail func(error)) {
	w := f.Walk()
	within := from
	if w.Len() > from {
		within += rng.IntN(w.Len() - from)
	}
	for ok := true; ok; ok = w.Step() {
		lo, hi := least, most
		switch w.At() {
		case w.Len():
			lo, hi = shown, shown
		case within:
		default:
			continue
		}
		model := crashfs.Model(rng.IntN(4))
		m.nested.Add(1)
		_, e, err := check(w.Crash(model, rng.Uint64()), worlds, lo, hi)
		if err != nil {
			fail(fmt.Errorf("second crash behind call %d of %d, %s: %w%s", w.At(), w.Len(), model, err, trail(w)))
			return
		}
		e.abandon()
	}
}

// goOn writes to a recovered store, and crashes it somewhere in there.
func (m *matrix) goOn(s *session, rng *rand.Rand, fail func(error)) {
	from := s.fs.Len()
	if s.now() == nil {
		if errs := s.together(bucketCall()); errs[0] != nil {
			fail(errs[0])
			return
		}
	}
	for _, k := range crashKeys {
		if _, there := s.now()[k]; there {
			if err := s.together(putCall(k, nil, "thief", Cond{Absent: true}))[0]; !errors.Is(err, ErrPrecondition) {
				fail(fmt.Errorf("conditional create of %q, which is there: %v", k, err))
				return
			}
			break
		}
	}
	if err := workload(s, rng.Uint64()>>40, 4); err != nil {
		fail(err)
		return
	}
	cuts := []int{s.fs.Len(), from + rng.IntN(s.fs.Len()-from+1), from + rng.IntN(s.fs.Len()-from+1)}
	w := s.fs.Walk()
	for ok := true; ok; ok = w.Step() {
		if !slices.Contains(cuts, w.At()) {
			continue
		}
		lo, hi := s.bounds(w.At())
		model := crashfs.Model(rng.IntN(4))
		m.nested.Add(1)
		_, e, err := check(w.Crash(model, rng.Uint64()), s.worlds, lo, hi)
		if err != nil {
			fail(fmt.Errorf("went on, then crashed behind call %d of %d, %s: %w%s", w.At(), w.Len(), model, err, trail(w)))
			return
		}
		e.abandon()
	}
}

const (
	// leastStates of the store alone in a run of the tests. Histories are added until there are so many.
	leastStates = 20_000
	// mostSeeds is how many histories that may take. More would be needed only where histories have come to reach fewer
	// states than they did, which must not go unseen.
	mostSeeds = 30
)

// collectLess lets the collector of memory run less often: every state opens a store of its own, whose memory is dropped
// at once, and collecting it took more than half of the time. It gives the function that undoes it.
func collectLess() func() {
	was := debug.SetGCPercent(800)
	return func() { debug.SetGCPercent(was) }
}

// TestStorePowerLoss: power fails behind every call of random histories. What was acknowledged is
// there byte for byte, what was not is absent or whole, in the order of the log; LIST, HEAD
// and GET agree; and a second crash during recovery, or one behind it, changes nothing.
func TestStorePowerLoss(t *testing.T) {
	states, seeds, steps, perCall := int64(leastStates), uint64(mostSeeds), 30, 5
	if os.Getenv("LIGHTMETRICS_SOAK") != "" {
		states, seeds, steps, perCall = 200_000, 200, 60, 8
	}
	defer collectLess()()
	m := &matrix{}
	calls, seed := 0, uint64(0)
	for m.count() < states && seed < seeds && !m.failed() {
		seed++
		calls += crashSeed(t, m, nil, seed, steps, perCall)
	}
	t.Logf("seeds 1 to %d: %d calls, %d crash states, %d of them second crashes", seed, calls, m.count(), m.nested.Load())
	if n := m.count(); n < states && !m.failed() {
		t.Errorf("only %d states, at least %d are promised", n, states)
	}
	for _, f := range m.failures {
		t.Error(f)
	}
}

// crashSeed explores one history; it gives how many calls it had.
func crashSeed(t *testing.T, m *matrix, lie func(crashfs.Op) bool, seed uint64, steps, perCall int) int {
	cryptotest.SetGlobalRandom(t, seed)
	// Every other history is sealed, and its key is rotated.
	crashKeyring.Store(nil)
	if seed%2 == 0 {
		crashKeyring.Store(testKeys(t, "one", "two"))
	}
	defer crashKeyring.Store(nil)
	f := crashfs.New()
	f.Lie = lie
	s, err := openSession(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.together(bucketCall())[0]; err != nil {
		t.Fatal(err)
	}
	if err := workload(s, seed, steps); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	pool := newWorkers(runtime.GOMAXPROCS(0))
	m.explore(s, seed, perCall, pool)
	pool.wait()
	if err := s.e.Close(); err != nil {
		t.Fatal(err)
	}
	return f.Len()
}
