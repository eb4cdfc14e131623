package ingest_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"

	"lightmetrics.dev/lightmetrics/internal/acceptance/jsonbatch"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/objstore"
	"lightmetrics.dev/lightmetrics/pkg/frame"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

func asJSON(r *http.Request) { r.Header.Set("Content-Type", "application/json; charset=utf-8") }

// jsonBatch is a batch of three samples; its keys and samples are in an order of the seed's.
func jsonBatch(agent string, seq uint64, value float64, seed uint64) []byte {
	rnd := rand.New(rand.NewPCG(seed, 1))
	object := func(fields ...string) string {
		rnd.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
		return "{" + strings.Join(fields, []string{",", ", ", ",\n"}[rnd.IntN(3)]) + "}"
	}
	var samples []string
	for i, kind := range []string{"a", "b", "c"} {
		samples = append(samples, object(`"name":"m"`, `"labels":`+object(`"kind":"`+kind+`"`, `"site":"north"`), `"type":"gauge"`,
			`"time_unix_ms":1700000000000`, fmt.Sprintf(`"value":%g`, value+float64(i))))
	}
	rnd.Shuffle(len(samples), func(i, j int) { samples[i], samples[j] = samples[j], samples[i] })
	return []byte(object(`"agent":"`+agent+`"`, `"boot":"b"`, fmt.Sprintf(`"first_seq":%d`, seq), `"samples":[`+strings.Join(samples, ",")+`]`))
}

// TestJSONOutcomes: a JSON batch has the outcomes of a frame, and is the frame that it makes.
func TestJSONOutcomes(t *testing.T) {
	c := start(t, newStore(), nil)
	body := jsonBatch("till", 1, 5, 1)
	f, err := jsonbatch.Encode(body, frame.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for i, duplicate := range []bool{false, true, true} {
		a := c.post(t, jsonBatch("till", 1, 5, uint64(i)), asJSON)
		if a.code != 200 || a.body["duplicate"] != duplicate || a.body["frame_sha256"] != identity.Sum(f).String() {
			t.Fatalf("submission %d: %+v", i, a)
		}
	}
	if a := c.post(t, f, nil); a.code != 200 || a.body["duplicate"] != true {
		t.Errorf("as a frame: %+v", a)
	}
	stored, _, err := c.store.Get(t.Context(), layout.Blob(identity.Sum(f), 0), objstore.GetOptions{})
	if err != nil || !bytes.Equal(stored, f) {
		t.Errorf("the store has %d bytes, %v", len(stored), err)
	}
	a := c.post(t, jsonBatch("till", 1, 6, 1), asJSON)
	if a.code != 409 || a.body["error"] != "identity_conflict" || a.body["accepted_sha256"] != identity.Sum(f).String() {
		t.Errorf("other values: %+v", a)
	}
	spool := func(r *http.Request) { asJSON(r); r.Header.Set(ingest.SpoolIDHeader, "another") }
	if a := c.post(t, jsonBatch("till", 4, 6, 1), spool); a.code != 400 || a.body["error"] != "boot_id_clash" {
		t.Errorf("another spool: %+v", a)
	}
}

// TestBadJSONWritesNothing: each refusal has its status and reason.
func TestBadJSONWritesNothing(t *testing.T) {
	c := start(t, newStore(), func(c *ingest.Config) { c.Limits.LabelValueBytes = 64 })
	before := contents(t, c.store)
	good := string(jsonBatch("till", 1, 5, 1))
	for name, tc := range map[string]struct {
		body   string
		code   int
		reason string
	}{
		"empty":          {"", 400, "bad_json"},
		"not JSON":       {"agent=till", 400, "bad_json"},
		"a frame":        {string(encode(t, boot, 1, 10, 0)), 400, "bad_json"},
		"an unknown key": {strings.Replace(good, `"boot"`, `"boat"`, 1), 400, "bad_json"},
		"a long label":   {strings.Replace(good, "north", strings.Repeat("n", 65), 1), 400, "bad_labels"},
		"in the future":  {strings.ReplaceAll(good, "1700000000000", "9000000000000"), 400, "time_in_future"},
		"too wide":       {strings.Replace(good, "1700000000000", "1", 1), 400, "time_span_too_wide"},
		"too large":      {good + strings.Repeat(" ", jsonbatch.MaxBytes), 413, "frame_too_large"},
	} {
		if a := c.post(t, []byte(tc.body), asJSON); a.code != tc.code || a.body["error"] != tc.reason || a.body["message"] == "" {
			t.Errorf("%s: %+v, want %d %s", name, a, tc.code, tc.reason)
		}
		a := c.post(t, []byte(tc.body), func(r *http.Request) { asJSON(r); r.ContentLength = -1 })
		if a.code != tc.code || a.body["error"] != tc.reason {
			t.Errorf("%s, chunked: %+v", name, a)
		}
	}
	if a := c.post(t, []byte(good), func(r *http.Request) { r.Header.Set("Content-Type", "text/json") }); a.code != 415 {
		t.Errorf("another type: %+v", a)
	}
	if !maps.Equal(before, contents(t, c.store)) {
		t.Error("something was written")
	}
}

// TestJSONRacesItself: two collectors get the same JSON batch at once, many times, written in
// many ways: exactly one submission accepts it, all others are its duplicates.
func TestJSONRacesItself(t *testing.T) {
	store := newStore()
	cs := []*collector{start(t, store, nil), start(t, store, func(c *ingest.Config) { c.ID = "collector-b" })}
	const batches, each = 20, 6
	for n := range batches {
		seq := uint64(1 + 3*n)
		different := n%4 == 3 // one submission has other values
		var mu sync.Mutex
		got := map[string]int{}
		hashes := map[any]bool{}
		var wg sync.WaitGroup
		for k := range each {
			wg.Go(func() {
				value := 5.0
				if different && k == 0 {
					value = 6
				}
				a := cs[k%2].post(t, jsonBatch("racer", seq, value, uint64(n*each+k)), asJSON)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case a.code == 200 && a.body["duplicate"] == false:
					got["accepted"]++
				case a.code == 200:
					got["duplicate"]++
				case a.code == 409:
					got["conflict"]++
				default:
					t.Errorf("batch %d: %+v", n, a)
				}
				if a.code == 200 {
					hashes[a.body["frame_sha256"]] = true
				}
			})
		}
		wg.Wait()
		conflicts := got["conflict"]
		if got["accepted"] != 1 || len(hashes) != 1 || !different && conflicts != 0 || different && conflicts != 1 && conflicts != each-1 {
			t.Errorf("batch %d (different %t): %v, %d frames", n, different, got, len(hashes))
		}
	}
	accepted := 0
	for key := range contents(t, store) {
		if objstore.Family(key) == "accepted" {
			accepted++
		}
	}
	if accepted != batches {
		t.Errorf("%d manifests for %d batches", accepted, batches)
	}
}
