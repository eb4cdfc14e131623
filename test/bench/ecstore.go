package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

const (
	ecData, ecParity = 4, 2
	ecPlaces         = ecData + ecParity
	// ecCopies is what a write leaves, and what bodies have before they are coded.
	ecCopies = 2
	// ecSettle bounds the wait for the store's workers.
	ecSettle = 2 * time.Minute
)

// onPlaces has settings of a store with six places; coded ones with 4+2.
func (r *rig) onPlaces(coded bool) error {
	places := make([]section, ecPlaces)
	for i := range places {
		if err := os.MkdirAll(r.place(i), 0o750); err != nil {
			return err
		}
		places[i] = section{"name": placeName(i), "dir": r.place(i)}
	}
	r.settings = section{"places": places, "ack_copies": ecCopies}
	if coded {
		r.settings["redundancy"] = section{"data": ecData, "parity": ecParity}
	}
	return nil
}

func placeName(i int) string      { return fmt.Sprintf("drive%d", i+1) }
func (r *rig) place(i int) string { return filepath.Join(r.dir, placeName(i)) }
func (r *rig) stopStore() error   { return r.store.Stop(30 * time.Second) }

// put writes bodies, one after the other.
func (r *rig) put(ctx context.Context, prefix string, n, size int) error {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s/%d", prefix, i)
	}
	ps, err := record(ctx, bucketAt("http://"+r.storeAddr, bucket, "", r.accessKey, r.secret), keys, size)
	if err != nil {
		return err
	}
	_, err = ps.replay(ctx, r.storeAddr, 1, time.Hour)
	return err
}

// redundancy is what the benchmarks read of GET /redundancy.
type redundancy struct {
	Files []struct {
		State string `json:"state"`
		Files int64  `json:"files"`
	} `json:"files"`
	Queued  int64 `json:"queued_bodies"`
	Missing int64 `json:"missing_files"`
	Since   struct {
		Made int64 `json:"files_made"`
	} `json:"since_start"`
}

// settled waits until the ledger has so many files, all durable, and the store has made at least so many since its start.
func (r *rig) settled(ctx context.Context, files, made int64) error {
	return r.until(ctx, fmt.Sprintf("%d files to be durable, %d of them made since the start", files, made), func(s redundancy) bool {
		for _, f := range s.Files {
			if f.State == "durable" && f.Files != files || f.State != "durable" && f.Files != 0 {
				return false
			}
		}
		return len(s.Files) > 0 && s.Queued == 0 && s.Missing == 0 && s.Since.Made >= made
	})
}

// until waits for a status of which done is true.
func (r *rig) until(ctx context.Context, what string, done func(redundancy) bool) error {
	ctx, cancel := context.WithTimeout(ctx, ecSettle)
	defer cancel()
	for {
		s, err := r.redundancy(ctx)
		if err != nil {
			return err
		}
		if done(s) {
			return nil
		}
		select {
		case <-time.After(5 * time.Millisecond): // a small part of what healing takes
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w: %+v", what, ctx.Err(), s)
		}
	}
}

func (r *rig) redundancy(ctx context.Context) (s redundancy, err error) {
	err = r.ask(ctx, "/redundancy", &s)
	return s, err
}

func (r *rig) ask(ctx context.Context, path string, to any) error {
	body, err := fetch(ctx, "http://"+r.storeAdmin+path)
	if err != nil {
		return err
	}
	defer body.Close()
	return json.NewDecoder(body).Decode(to)
}

// healNow orders a look at all places and bodies.
func (r *rig) healNow(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.storeAdmin+"/redundancy/heal", bytes.NewReader([]byte("{}")))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("heal: %s", resp.Status)
	}
	return nil
}

// bodyFiles are the files of bodies on a place, with their sizes: whatever is larger than what a place notes of itself.
func (r *rig) bodyFiles(i int) (map[string]int64, error) {
	files := map[string]int64{}
	err := filepath.WalkDir(r.place(i), func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Size() >= 64<<10 {
			files[name] = info.Size()
		}
		return err
	})
	return files, err
}

func (r *rig) bytesOnPlaces() (total int64, err error) {
	for i := range ecPlaces {
		files, err := r.bodyFiles(i)
		if err != nil {
			return 0, err
		}
		for _, n := range files {
			total += n
		}
	}
	return total, nil
}

// goalDegraded is that of reading without places beside reading with all.
const goalDegraded = 0.5

// ecRead reads one body from three stores of the same data: with all places, without the place of one of its data shards, and of two.
func ecRead(ctx context.Context, e *env) (rs []Result, err error) {
	const size = 64 << 20
	whole, err := newRig(e)
	if err != nil {
		return nil, err
	}
	defer whole.close()
	if err := whole.onPlaces(true); err != nil {
		return nil, err
	}
	if err := whole.startStore(ctx); err != nil {
		return nil, err
	}
	if err := whole.put(ctx, "read", 1, size); err != nil {
		return nil, err
	}
	if err := whole.settled(ctx, ecPlaces, 0); err != nil {
		return nil, err
	}
	var list struct {
		Files []struct {
			Index int    `json:"index"`
			Place string `json:"place"`
		} `json:"files"`
	}
	if err := whole.ask(ctx, "/redundancy/files", &list); err != nil {
		return nil, err
	}
	at := map[int]string{} // place of each shard
	for _, f := range list.Files {
		at[f.Index] = f.Place
	}
	if err := whole.stopStore(); err != nil {
		return nil, err
	}
	rates := make([]func(context.Context) (float64, error), 3)
	for lost := range rates {
		r := whole
		if lost > 0 {
			if r, err = whole.without(e, lost, at); err != nil {
				return nil, err
			}
			defer r.close()
		}
		if err := r.startStore(ctx); err != nil {
			return nil, err
		}
		if rates[lost], err = r.reading(ctx, "read/0", size); err != nil {
			return nil, err
		}
	}
	for lost := 1; lost < len(rates); lost++ {
		a, b, ratio, note, err := paired(ctx, e.pairs, rates[lost], rates[0])
		if err != nil {
			return rs, err
		}
		rs = append(rs, Result{Name: fmt.Sprintf("ec/read/without-%d", lost), Value: a, Unit: "MB/s", Baseline: "all places", BaselineValue: b, Ratio: ratio,
			Goal: fmt.Sprintf(">= %g", goalDegraded), Pass: ratio >= goalDegraded, Durability: "page cache",
			Note: fmt.Sprintf("%s; a body of 64 MiB, 4+2, over HTTP by one client, the first %d data shards away", note, lost)})
	}
	return rs, nil
}

// without is a copy of a stopped store that lacks the places of the first data shards.
func (r *rig) without(e *env, lost int, at map[int]string) (*rig, error) {
	c, err := newRig(e)
	if err != nil {
		return nil, err
	}
	c.accessKey, c.secret = r.accessKey, r.secret
	if err := os.CopyFS(c.dir, os.DirFS(r.dir)); err != nil {
		return nil, err
	}
	if err := c.onPlaces(true); err != nil {
		return nil, err
	}
	for i := range lost {
		if err := os.RemoveAll(filepath.Join(c.dir, at[i])); err != nil || at[i] == "" {
			return nil, errors.Join(err, fmt.Errorf("shard %d is at %q", i, at[i]))
		}
	}
	return c, nil
}

// reading is the rate of GETs of one body, MB/s.
func (r *rig) reading(ctx context.Context, key string, size int) (func(context.Context) (float64, error), error) {
	gets, err := recordGets(ctx, bucketAt("http://"+r.storeAddr, bucket, "", r.accessKey, r.secret), []string{key})
	if err != nil {
		return nil, err
	}
	rate := func(d time.Duration) func(ctx context.Context) (float64, error) {
		return func(ctx context.Context) (float64, error) {
			got, err := gets.replay(ctx, r.storeAddr, 1, d)
			return got.rate() * float64(size) / 1e6, err
		}
	}
	if _, err := rate(100 * time.Millisecond)(ctx); err != nil { // warm up
		return nil, err
	}
	return rate(r.e.ecRun()), nil
}

func (e *env) ecRun() time.Duration { return e.storeRun() / 2 }
