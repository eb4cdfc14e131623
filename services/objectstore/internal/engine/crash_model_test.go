package engine

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"lightmetrics.dev/lightmetrics/internal/harness/crashfs"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/body"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/seal"
)

// crashKeys are all keys that a workload uses.
var crashKeys = func() (keys []string) {
	for i := range 12 {
		keys = append(keys, fmt.Sprintf("k/%02d", i))
	}
	return keys
}()

// stored is what a client can see of an object.
type stored struct{ etag, body, tags, user string }

// world is what clients can see of the store: an object for each key. The policy
// stands under the empty key; nil is a store without the bucket.
type world map[string]stored

// session runs a workload on one engine, of which the test is the committer: what goes
// into a batch is the test's choice, so that a seed repeats.
type session struct {
	fs *crashfs.FS
	e  *Engine
	// worlds[i] is what is to be seen after i effects, in the order of the log.
	worlds []world
	// count is the number of calls recorded, where fs is not the only disk; nil: fs counts.
	count func() int
	// issued and acked are the calls recorded when effect i began to be written and
	// when its client could have been told.
	issued, acked []int
}

func crashOptions(f *crashfs.FS) Options {
	opt := Options{
		FS: f, IndexFS: crashVFS{f}, Dir: "/", IndexDir: "/index",
		SegmentBytes: 6 << 10, InlineBytes: 2 << 10, ReclaimBelow: 0.6, Keys: crashKeyring.Load(),
	}
	if crashBodies != nil {
		opt.Bodies = crashBodies(f)
	}
	return opt
}

// crashKeyring has the keys of the histories that are explored; nil: their bodies are not sealed.
var crashKeyring atomic.Pointer[seal.Keys]

// rotateCall makes another key the current one, and seals everything with it.
func rotateCall(next *seal.Keys) call {
	return call{func(e *Engine) error {
		e.opt.Keys = next
		_, err := e.Reseal(context.Background(), func(context.Context, int64) error { return nil })
		return err
	}, nil}
}

// crashBodies gives the store of large bodies on a disk; nil is the engine's own.
var crashBodies func(*crashfs.FS) body.Store

func openSession(f *crashfs.FS, now world) (*session, error) {
	e, err := Open(crashOptions(f))
	return &session{fs: f, e: e, worlds: []world{now}}, err
}

func (s *session) calls() int {
	if s.count != nil {
		return s.count()
	}
	return s.fs.Len()
}

func (s *session) now() world { return s.worlds[len(s.worlds)-1] }

// call is what one client asks for, and what it changes when it succeeds.
type call struct {
	do     func(*Engine) error
	effect func(world)
}

// together lets each client enqueue, in order, commits what they asked in one batch, and
// gives their answers.
func (s *session) together(calls ...call) []error {
	answers := make([]chan error, len(calls))
	var batch []*op
	early := make([]bool, len(calls))
	for i, c := range calls {
		answers[i] = make(chan error, 1)
		go func() { answers[i] <- c.do(s.e) }()
		select {
		case o := <-s.e.ops:
			batch = append(batch, o)
		case err := <-answers[i]:
			answers[i] <- err // it failed before it got here
			early[i] = true
		}
	}
	before := bucketUsage(s.e)
	issued := s.calls()
	if len(batch) > 0 {
		s.e.commit(batch)
	}
	acked := s.calls()
	errs := make([]error, len(calls))
	for i, c := range calls {
		if !early[i] {
			close(batch[0].done)
			batch = batch[1:]
		}
		for waiting := true; waiting; {
			select {
			case errs[i] = <-answers[i]:
				waiting = false
			case o := <-s.e.ops: // a call of several steps
				s.e.commit([]*op{o})
				close(o.done)
				acked = s.calls()
			}
		}
		if errs[i] == nil && c.effect != nil {
			w := maps.Clone(s.now())
			if w == nil {
				w = world{}
			}
			c.effect(w)
			s.worlds = append(s.worlds, w)
			s.issued, s.acked = append(s.issued, issued), append(s.acked, acked)
		}
	}
	if crashQuotas.Load() {
		if err := checkQuota(s.e, before, errs); err != nil {
			errs[0] = err
		}
	}
	return errs
}

// bounds gives the fewest and the most effects that a crash behind so many calls may show.
func (s *session) bounds(calls int) (least, most int) {
	for i := range s.acked {
		if s.acked[i] <= calls {
			least = i + 1
		}
		if s.issued[i] < calls {
			most = i + 1
		}
	}
	return least, max(least, most)
}

var errLost = errors.New("the store shows what no prefix of its writes explains")

// look reads everything that a client can see, in every way there is, and compares the ways.
func look(e *Engine) (world, error) {
	if _, err := e.Bucket("bkt"); errors.Is(err, ErrNoBucket) {
		if len(e.Buckets()) != 0 {
			return nil, errors.New("a bucket that nobody made")
		}
		return nil, nil
	}
	b, err := e.Bucket("bkt")
	if err != nil {
		return nil, err
	}
	w := world{"": {body: string(b.Policy), user: string(b.Versioning()), tags: quotaMark(b.Quota())}}
	page, err := e.List("bkt", ListQuery{Max: 1000})
	if err != nil {
		return nil, err
	}
	var total int64
	for _, x := range page.Objects {
		h, err := e.Get("bkt", x.Key)
		if err != nil {
			return nil, fmt.Errorf("listed, but: %w", err)
		}
		var body bytes.Buffer
		err = h.Copy(&body, 0, h.Object.Size)
		h.Close()
		if err != nil {
			return nil, fmt.Errorf("listed, but: %w", err)
		}
		o, err := e.Stat("bkt", x.Key)
		if err != nil || o.ETag != x.ETag || o.Seq != x.Seq || o.Size != x.Size || !o.Modified.Equal(epoch) || int(o.Size) != body.Len() {
			return nil, fmt.Errorf("%q: HEAD, LIST and GET differ: %v", x.Key, err)
		}
		total += o.Size
		w[x.Key] = stored{o.ETag, body.String(), marks(&o), fmt.Sprint(o.User)}
	}
	for _, k := range crashKeys {
		if _, listed := w[k]; !listed {
			if _, err := e.Get("bkt", k); !errors.Is(err, ErrNotFound) {
				return nil, fmt.Errorf("%q is not listed, but GET says %v", k, err)
			}
		}
	}
	if err := lookUploads(e, w); err != nil {
		return nil, err
	}
	versions, bytes, err := lookVersions(e, w)
	if err != nil {
		return nil, err
	}
	got := e.Stats()
	want := Stats{Objects: int64(len(page.Objects)), ObjectBytes: total, Hidden: versions - int64(len(page.Objects)), HiddenBytes: bytes - total}
	if got.Objects != want.Objects || got.ObjectBytes != want.ObjectBytes || got.Hidden != want.Hidden || got.HiddenBytes != want.HiddenBytes {
		return nil, fmt.Errorf("counters say %+v, there is %+v", got, want)
	}
	return w, errors.Join(tidy(e), checkKeyUsage(e), checkUsage(e))
}

// lookUploads adds the open uploads and their parts, whose bytes it reads.
func lookUploads(e *Engine, w world) error {
	page, err := e.Uploads("bkt", UploadQuery{Max: 1000})
	if err != nil {
		return err
	}
	for _, u := range page.Uploads {
		parts, _, err := e.Parts("bkt", u.Key, u.ID, 0, MaxParts)
		if err != nil {
			return fmt.Errorf("upload %s is listed, but: %w", u.ID, err)
		}
		w[uploadKey(u.Key, u.ID)] = stored{etag: u.Key}
		for _, p := range parts {
			h := &Handle{Object: p.Object, e: e, of: u.Key}
			var body bytes.Buffer
			err := h.openBodies(&entry{seq: p.Seq})
			if err == nil {
				err = h.copyExtents(&body, 0, p.Size)
				h.Close()
			}
			if err != nil || int64(body.Len()) != p.Size {
				return fmt.Errorf("part %d of upload %s is listed, but: %w", p.Number, u.ID, err)
			}
			w[partKey(u.ID, p.Number)] = stored{etag: p.ETag, body: body.String()}
		}
	}
	return nil
}

// checkUsage: what the engine counts of each bucket is what its records have.
func checkUsage(e *Engine) error {
	got, want, open := map[string]usage{}, map[string]usage{}, map[string]bool{}
	for _, internal := range []bool{true, false} {
		err := e.eachRecord(func(bucket, record string, x *entry) error {
			u := want[bucket]
			if _, id, ok := parseUploadKey(record); ok {
				open[id] = true
			} else if id, _, ok := parsePartKey(record); ok {
				if !internal && open[id] {
					u.add(0, x.size)
				}
			} else if !internal && !x.isMarker() {
				u.add(1, x.size)
			}
			want[bucket] = u
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, u := range e.Usage() {
		got[u.Bucket] = usage{u.Objects, u.Bytes}
		if _, ok := want[u.Bucket]; !ok {
			want[u.Bucket] = usage{}
		}
	}
	if !maps.Equal(got, want) {
		return fmt.Errorf("the store counts %v by bucket, and has %v", got, want)
	}
	return nil
}

// checkKeyUsage: what the engine counts of each key is what its records have.
func checkKeyUsage(e *Engine) error {
	got, want := map[seal.Version]usage{}, map[seal.Version]usage{}
	err := e.eachRecord(func(_, _ string, x *entry) error {
		x.eachStored(func(v seal.Version, bytes int64) {
			if bytes > 0 {
				u := want[v]
				u.add(1, bytes)
				want[v] = u
			}
		})
		return nil
	})
	for _, u := range e.KeyUsage() {
		if u.Records != 0 || u.Bytes != 0 {
			v := seal.Version{ID: u.Key}
			_, _ = hex.Decode(v.Check[:], []byte(u.Check))
			got[v] = usage{u.Records, u.Bytes}
		}
	}
	if err == nil && !maps.Equal(got, want) {
		err = fmt.Errorf("the store counts %v by key, and has %v", got, want)
	}
	return err
}

// tidy: every body belongs to an object, and the log can be read from its start.
func tidy(e *Engine) error {
	err := e.eachUnnamedBody(func(id string) error { return fmt.Errorf("body %s belongs to nothing", id) })
	for c := e.Tail(0); ; {
		_, _, more, rerr := c.Read(100, func(*Event) bool { return true })
		if rerr != nil || !more {
			return errors.Join(err, rerr)
		}
	}
}

// check opens the disk and compares; it gives how many effects are to be seen, and the open engine.
func check(f *crashfs.FS, worlds []world, least, most int) (int, *Engine, error) {
	e, err := Open(crashOptions(f))
	if err != nil {
		return 0, nil, err
	}
	w, err := look(e)
	if err != nil {
		e.abandon()
		return 0, nil, err
	}
	for i := least; i <= most; i++ {
		if (w == nil) == (worlds[i] == nil) && maps.Equal(w, worlds[i]) {
			return i, e, nil
		}
	}
	e.abandon()
	return 0, nil, fmt.Errorf("%w: %s", errLost, difference(w, worlds[least]))
}

func difference(got, want world) string {
	var b []byte
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if _, ok := got[k]; !ok {
			b = fmt.Appendf(b, "%q is gone; ", k)
		} else if got[k] != want[k] {
			b = fmt.Appendf(b, "%q is %.40q, not %.40q; ", k, got[k], want[k])
		}
	}
	for k := range got {
		if _, ok := want[k]; !ok {
			b = fmt.Appendf(b, "%q came from nowhere; ", k)
		}
	}
	return string(b)
}

// simple calls of a client.

func bucketCall() call {
	return call{
		func(e *Engine) error { return e.CreateBucket(context.Background(), "bkt", epoch) },
		func(w world) { w[""] = stored{} },
	}
}

func policyCall(p string) call {
	return call{
		func(e *Engine) error { return e.SetPolicy(context.Background(), "bkt", []byte(p)) },
		func(w world) { w[""] = stored{body: p, user: w[""].user, tags: w[""].tags} },
	}
}

func putCall(key string, body []byte, etag string, c Cond) call {
	o := sized(key, body)
	o.ETag, o.User = etag, []Pair{{"etag", etag}}
	var id string
	return call{
		func(e *Engine) error {
			if int64(len(body)) <= e.InlineBytes() {
				made, err := e.Put(context.Background(), o, body, c)
				id = made.Version
				return err
			}
			b, err := e.NewBlob("bkt", key)
			if err != nil {
				return err
			}
			o := o
			_, err = b.Write(body)
			if err == nil {
				var x Extent
				x, err = b.Finish()
				o.Extents = []Extent{x}
			}
			if err == nil {
				o, err = e.Put(context.Background(), o, nil, c)
				id = o.Version
			}
			if err != nil {
				b.Discard()
			}
			return err
		},
		func(w world) { w.write(key, id, stored{etag, string(body), "[]", fmt.Sprint(o.User)}) },
	}
}

func deleteCall(key string) call {
	var id string
	return call{
		func(e *Engine) error {
			d, err := e.Delete(context.Background(), "bkt", Deletion{Key: key, Modified: epoch, Expired: len(key)%2 == 0})
			id = d.Made
			return err
		},
		func(w world) { w.remove(key, id) },
	}
}

func tagCall(key, value string) call {
	tags := []Pair{{"t", value}}
	return call{
		func(e *Engine) error {
			_, err := e.SetTags(context.Background(), "bkt", key, "", tags)
			if errors.Is(err, ErrNotFound) {
				return fs.ErrNotExist
			}
			return err
		},
		func(w world) { w.tag(key, "", fmt.Sprint(tags)) },
	}
}

// uploadCall begins an upload.
func uploadCall(key string) call {
	var id string
	return call{
		func(e *Engine) (err error) {
			id, err = e.CreateUpload(context.Background(), Object{Bucket: "bkt", Key: key, Modified: epoch})
			return err
		},
		func(w world) { w[uploadKey(key, id)] = stored{etag: key} },
	}
}

func partCall(key, id string, n int, body []byte, etag string) call {
	return call{
		func(e *Engine) error { return putPart(e, key, id, n, body, etag) },
		func(w world) { w[partKey(id, n)] = stored{etag: etag, body: string(body)} },
	}
}

// forget takes an upload and its parts out of a world.
func (w world) forget(key, id string) {
	delete(w, uploadKey(key, id))
	maps.DeleteFunc(w, func(k string, _ stored) bool {
		of, _, ok := parsePartKey(k)
		return ok && of == id
	})
}

// completeCall makes an object of all parts of an upload.
func completeCall(key, id, etag string, c Cond) call {
	var body, made string
	user := []Pair{{"etag", etag}}
	return call{
		func(e *Engine) error {
			parts, _, err := e.Parts("bkt", key, id, 0, MaxParts)
			if err != nil {
				return err
			}
			o := Object{Bucket: "bkt", Key: key, Modified: epoch, ETag: etag, User: user}
			for _, p := range parts {
				o.Size += p.Size
			}
			o, err = e.Complete(context.Background(), o, id, parts, c)
			made = o.Version
			return err
		},
		func(w world) {
			for _, k := range slices.Sorted(maps.Keys(w)) {
				if of, _, ok := parsePartKey(k); ok && of == id {
					body += w[k].body
				}
			}
			w.forget(key, id)
			w.write(key, made, stored{etag, body, "[]", fmt.Sprint(user)})
		},
	}
}

func abortCall(key, id string) call {
	return call{
		func(e *Engine) error { return e.AbortUpload(context.Background(), "bkt", key, id) },
		func(w world) { w.forget(key, id) },
	}
}

func sweepCall() call {
	return call{func(e *Engine) error {
		_, err := e.SweepUploads(context.Background(), "bkt", time.Time{})
		return err
	}, nil}
}

func reclaimCall() call {
	return call{func(e *Engine) error { _, err := e.Reclaim(context.Background()); return err }, nil}
}

// sealCall writes the footers that are missing.
func sealCall() call {
	return call{func(e *Engine) error {
		for {
			if more, err := e.Seal(); !more || err != nil {
				return err
			}
		}
	}, nil}
}

// flushCall makes the index durable up to here.
func flushCall() call {
	return call{func(e *Engine) error { return e.submit(context.Background(), &op{flush: true}) }, nil}
}

// workers runs fn for each item on all cores, until one fails.
type workers struct {
	wg   sync.WaitGroup
	jobs chan func()
}

func newWorkers(n int) *workers {
	w := &workers{jobs: make(chan func(), 4*n)}
	for range n {
		w.wg.Go(func() {
			for job := range w.jobs {
				job()
			}
		})
	}
	return w
}

func (w *workers) wait() { close(w.jobs); w.wg.Wait() }
