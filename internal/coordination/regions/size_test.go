package regions_test

import (
	"context"
	"encoding/binary"
	"os"
	"strconv"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/claims"
	"lightmetrics.dev/lightmetrics/internal/coordination/folds"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

// bytes of keys and values that etcd has.
func (w *world) bytes() (n int) {
	w.t.Helper()
	r, err := w.kv.Commit(context.Background(), claims.Txn{Parts: []claims.Part{{Reads: []claims.Range{{From: string(keys), End: string(keys[:len(keys)-1]) + "0"}}}}})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range r.Parts[0].Reads[0] {
		n += len(e.Key) + len(e.Value)
	}
	return n
}

// TestEtcdStaysSmall: what etcd has of a boot does not grow with its batches, and of boots that are forgotten it has nothing.
// IDENTITIES says how many there are in all.
func TestEtcdStaysSmall(t *testing.T) {
	const boots, each = 50, 64
	identities := 50_000
	if n, err := strconv.Atoi(os.Getenv("IDENTITIES")); err == nil {
		identities = n
	}
	w := newWorld(t, "eu", "us")
	k := w.keeper("eu", "us")
	o, err := k.Open(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	folder, folded := k.Folder(o.Epoch, o.Retired), k.Folded(k.Folder(o.Epoch, o.Retired))
	g, now := claims.NewGroup(claims.DefaultConfig(), keys, o.Epoch, o.Revision), int64(1000)
	do := func(ops ...claims.Op) []claims.Answer {
		t.Helper()
		out, at := make([]claims.Answer, len(ops)), map[claims.Ticket]int{}
		for i, op := range ops {
			ticket, err := g.Submit(time.Unix(0, now), op)
			if err != nil {
				t.Fatal(err)
			}
			at[ticket] = i
		}
		for f := g.Next(time.Unix(0, now)); f != nil; f = g.Next(time.Unix(0, now)) {
			r, err := w.kv.Commit(t.Context(), f.Txn)
			for _, d := range g.Land(time.Unix(0, now), f, r, err) {
				if d.Err != nil {
					t.Fatal(d.Err)
				}
				out[at[d.Ticket]] = d.Answer
			}
		}
		return out
	}
	ids := uint64(0)
	next := func(boot string, kind claims.Kind, n uint64, id uint64) claims.Op {
		op := claims.Op{Kind: kind, Identity: batch(boot, 10*n, 10*n+9), Hash: identity.Sum([]byte("a")), Region: "eu", Epoch: o.Epoch.Number, At: now}
		binary.BigEndian.PutUint64(op.ID[:], id)
		return op
	}
	empty, first, round, sizes := w.bytes(), uint64(0), 0, []int{}
	for done := 0; done < identities; done += boots * each {
		now++
		for b := range boots {
			boot := "b" + strconv.Itoa(b)
			var take, complete, settle []claims.Op
			for i := range uint64(each) {
				ids++
				take = append(take, next(boot, claims.DoClaim, first+i, ids))
				complete, settle = append(complete, next(boot, claims.DoComplete, first+i, ids)), append(settle, next(boot, claims.DoSettle, first+i, ids))
			}
			for i, a := range do(take...) {
				// Only the first batch of a boot looks at folds.
				for a.Outcome == claims.Folded && round == 0 {
					_, looked, err := folded.Decide(t.Context(), take[i], a.Folds)
					if err != nil {
						t.Fatal(err)
					}
					take[i].Looked = looked
					a = do(take[i])[0]
				}
				if a.Outcome != claims.Held {
					t.Fatalf("%s: %+v", take[i].Identity, a)
				}
			}
			do(complete...)
			do(settle...)
			n, _, _, err := folder.Boot(t.Context(), take[0].Identity.BootOf(), folds.Due{Before: now + 1, Least: each}, func(op claims.Op) (claims.Answer, error) { return do(op)[0], nil })
			if err != nil || n != each {
				t.Fatalf("%d folded, %v", n, err)
			}
		}
		first += each
		if round++; round&(round-1) == 0 {
			sizes = append(sizes, (w.bytes()-empty)/boots)
		}
	}
	t.Logf("%d identities of %d boots: bytes of a boot after 1, 2, 4, … rounds of %d identities: %v", round*boots*each, boots, each, sizes)
	// Numbers become longer; nothing else grows.
	if last := sizes[len(sizes)-1]; last > sizes[0]+16 || last > 200 {
		t.Errorf("%d bytes of a boot, %d after the first round", last, sizes[0])
	}
	for b := range boots {
		op := next("b"+strconv.Itoa(b), claims.DoFoldable, 0, 0)
		known := do(op)[0].Folds
		op.Kind, op.Base = claims.DoForget, known.Modified
		if a := do(op)[0]; a.Outcome != claims.Applied {
			t.Fatalf("%+v", a)
		}
	}
	if n := w.bytes() - empty; n > 256*64 {
		t.Errorf("%d bytes of boots that are forgotten", n)
	}
	again := next("b7", claims.DoClaim, 5, 1<<40)
	a := do(again)[0]
	if a, _, err = folded.Decide(t.Context(), again, a.Folds); err != nil || a.Outcome != claims.Decided {
		t.Errorf("%+v, %v", a, err)
	}
}
