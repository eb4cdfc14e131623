package delta

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/accepted"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/internal/objstore/mem"
	"lightmetrics.dev/lightmetrics/internal/record"
	"lightmetrics.dev/lightmetrics/internal/shard"
	"lightmetrics.dev/lightmetrics/internal/timegrid"
	"lightmetrics.dev/lightmetrics/pkg/identity"
)

const hour0 = timegrid.Hour(498_000)

// batches of one agent, with the frames that they name.
func batches(n int) (out []Batch, frames [][]byte) {
	for i := range n {
		raw := bytes.Repeat(fmt.Appendf(nil, "frame %d ", i), i+1)
		d := identity.Sum(raw)
		hours := []timegrid.Hour{hour0 - 3, hour0 - 2, hour0 - 1}[:1+i%3]
		if i%4 == 3 {
			hours = append(slices.Clone(hours), hour0+5)
		}
		out = append(out, Batch{accepted.Batch{
			Identity: identity.Batch{Agent: "a <&> é", Boot: fmt.Sprintf("b%03d", i/2), SeqStart: uint64(10 * i), SeqEnd: uint64(10*i + 9)}, FrameSHA256: d, FrameBytes: uint64(len(raw)),
			RawBlobKey: layout.Blob(d, uint32(i%2)), AcceptedAt: int64(i), MinTime: hours[0].StartMS()*1e6 + 1e6, MaxTime: hours[len(hours)-1].EndMS() * 1e6,
		}, hours})
		frames = append(frames, raw)
	}
	return out, frames
}

func sample(t testing.TB, n int) (*Delta, [][]byte) {
	t.Helper()
	bs, frames := batches(n)
	d, err := New("auth", shard.Of("a <&> é", 4), 4, bs)
	if err != nil {
		t.Fatal(err)
	}
	return d, frames
}

func put(t testing.TB, s *mem.Store, key string, body []byte) {
	t.Helper()
	if _, err := s.Put(t.Context(), key, body, objstore.PutOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestRoundTrip(t *testing.T) {
	for _, n := range []int{1, 5, 300} { // the header of the last one is longer than the first read
		d, frames := sample(t, n)
		body, err := d.Marshal(frames)
		if err != nil || int64(len(body)) != d.Size() {
			t.Fatal(len(body), d.Size(), err)
		}
		s := mem.New(time.Now)
		put(t, s, d.Key(), body)
		got, err := Read(t.Context(), s, "auth", d.Key())
		if err != nil || !reflect.DeepEqual(got, d) {
			t.Fatalf("%+v %v\nwant %+v", got, err, d)
		}
		back, err := got.ReadFrames(t.Context(), s)
		if err != nil || !reflect.DeepEqual(back, frames) {
			t.Fatal(back, err)
		}
		if d.Records() != uint64(10*n) || d.Find(d.Batches[0].Identity) != &d.Batches[0] || d.Find(identity.Batch{Agent: "x"}) != nil {
			t.Error("records, or what is found")
		}
	}
}

// The same batches are the same object, in whatever order and however often they are given.
func TestTheNameIsTheContent(t *testing.T) {
	bs, _ := batches(5)
	a, err := New("auth", shard.Of("a <&> é", 4), 4, bs)
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(bs)
	b, err := New("auth", a.Shard, 4, append(bs, bs[2]))
	if err != nil || a.Key() != b.Key() || !reflect.DeepEqual(a, b) {
		t.Errorf("%s and %s, %v", a.Key(), b.Key(), err)
	}
	if from, to := a.Hours(); from != hour0-3 || to != hour0+5 {
		t.Error(from, to)
	}
}

func TestWhatIsRefused(t *testing.T) {
	good, _ := batches(3)
	id := shard.Of("a <&> é", 4)
	for name, spoil := range map[string]func(*Batch){
		"no hours": func(b *Batch) { b.Hours = nil }, "hours out of order": func(b *Batch) { b.Hours = []timegrid.Hour{hour0 - 2, hour0 - 3} },
		"the same hour twice": func(b *Batch) { b.Hours = []timegrid.Hour{hour0 - 3, hour0 - 3} }, "an hour before": func(b *Batch) { b.Hours = []timegrid.Hour{hour0 - 9} },
		"an hour after": func(b *Batch) { b.Hours = []timegrid.Hour{hour0 + 9} }, "another shard": func(b *Batch) { b.Agent = other(id) }, "no bytes": func(b *Batch) { b.FrameBytes = 0 },
		"too many bytes": func(b *Batch) { b.FrameBytes = MaxFrameBytes + 1 }, "so many bytes that they overflow": func(b *Batch) { b.FrameBytes = 1<<64 - 1 }, "no range": func(b *Batch) { b.SeqEnd = b.SeqStart - 1 },
	} {
		bs := slices.Clone(good)
		spoil(&bs[1])
		if _, err := New("auth", id, 4, bs); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if _, err := New("auth", id, 4, nil); err == nil {
		t.Error("nothing is taken")
	}
	if _, err := New("", id, 4, good); err == nil {
		t.Error("no authority is taken")
	}
}

func other(id shard.ID) string {
	for i := 0; ; i++ {
		if a := fmt.Sprint("agent", i); shard.Of(a, 4) != id {
			return a
		}
	}
}

// Every bit of an object is covered by its name.
func TestDamageIsFound(t *testing.T) {
	d, frames := sample(t, 4)
	body, err := d.Marshal(frames)
	if err != nil {
		t.Fatal(err)
	}
	for i := range body {
		bad := bytes.Clone(body)
		bad[i] ^= 1
		s := mem.New(time.Now)
		put(t, s, d.Key(), bad)
		got, err := Read(t.Context(), s, "auth", d.Key())
		if err == nil {
			_, err = got.ReadFrames(t.Context(), s)
		}
		if !record.Opaque(err) {
			t.Fatalf("byte %d: %v", i, err)
		}
	}
	for _, n := range []int{0, 1, 10, len(body) - 1} {
		s := mem.New(time.Now)
		put(t, s, d.Key(), body[:n])
		got, err := Read(t.Context(), s, "auth", d.Key())
		if err == nil {
			_, err = got.ReadFrames(t.Context(), s)
		}
		if !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	s := mem.New(time.Now)
	put(t, s, d.Key(), append(bytes.Clone(body), 'x'))
	if _, err := d.ReadFrames(t.Context(), s); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("a byte more: %v", err)
	}
	put(t, s, d.Key(), body)
	if _, err := Read(t.Context(), s, "another", d.Key()); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("of another authority: %v", err)
	}
	twin, _ := sample(t, 3)
	if _, err := parse("auth", twin.Key(), d.header); !errors.Is(err, record.ErrCorrupt) {
		t.Errorf("under the key of another: %v", err)
	}
	if _, err := Read(t.Context(), s, "auth", twin.Key()); !errors.Is(err, objstore.ErrNotFound) {
		t.Errorf("not there: %v", err)
	}
	newer := strings.Replace(string(d.header), "delta.v1", "delta.v2", 1)
	if _, err := parse("auth", d.Key(), []byte(newer)); !errors.Is(err, record.ErrNewerVersion) {
		t.Errorf("of a newer release: %v", err)
	}
	frames[1] = append(bytes.Clone(frames[1]), 0)
	if _, err := d.Marshal(frames); err == nil {
		t.Error("a frame with other bytes is written")
	}
}

func FuzzParseHeader(f *testing.F) {
	d, _ := sample(f, 4)
	f.Add(d.header)
	f.Add([]byte(`{"schema":"lightmetrics.rollup_delta.v1","boots":[{"batches":[[1,2,"",1,1,1,1,"",[1,9223372036854775807]]]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseHeader(b)
		if err == nil && !bytes.Equal(got.marshalHeader(), b) {
			t.Errorf("%s is read from %s", got.marshalHeader(), b)
		}
	})
}
