package objectstore

import (
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/engine"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/mirror"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/redundancy"
)

const hostile = `<script>alert(1)</script><b x="'` + "`" + `&amp;`

// anything is a page with something in every part of it, and text of others that would like to be more than text.
func anything() statusData {
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	st := redundancy.Status{
		Time: at, Policy: redundancy.Policy{Version: 3, Copies: 2, Data: 4, Parity: 2, Threshold: 4 << 20}, Missing: 12, Queued: 40, OldestSeconds: 620, DeadLetters: 2,
		Heal: redundancy.Heal{Began: at.Add(-time.Hour), Files: 12, Most: 400}, Files: []redundancy.StateCount{{State: "staged", Files: 12}, {State: "durable", Files: 70_123}},
		Scrub: redundancy.Pass{Began: at.Add(-50 * 24 * time.Hour), Files: 12_345, Bytes: 1 << 41, Found: 1, Last: at.Add(-40 * 24 * time.Hour)}, ScrubPeriodSeconds: 14 * 24 * 3600,
		Counters: redundancy.Counters{FilesMade: 5, FilesMoved: 6, FilesRemoved: 7, FilesDamaged: 1, BytesMade: 1 << 30, BytesRead: 1 << 40}, Error: hostile,
		Segments: redundancy.SegmentStatus{Coded: 12, CodedBytes: 3 << 30, Waiting: 1, LogBytes: 256 << 20},
	}
	for i, p := range []redundancy.PlaceStatus{
		{Name: "drive1", Up: true, Free: 6 << 40, Room: 8 << 40, Used: 2 << 40, Files: 31_000}, {Name: "drive2", Up: true, Full: true, Free: 3 << 30, Room: 1 << 40, Used: 1<<40 - 3<<30, Files: 12_000},
		{Name: "drive3", Free: -1, Error: hostile, Used: 2 << 40, Files: 9_100}, {Name: "drive4", Up: true, State: "draining", Free: 5 << 40, Room: 8 << 40, Used: 3 << 40, Files: 800},
		{Name: "bucket-" + hostile, Up: true, Free: -1, Used: 1 << 40, Files: 5_000}, {Name: "gone", State: "lost", Free: -1},
	} {
		p.Seen = at.Add(-time.Duration(i) * time.Minute)
		st.Places = append(st.Places, redundancy.PlaceReport{PlaceStatus: p, Listing: redundancy.Pass{Ended: at}})
	}
	d := statusData{
		Version: "v1.2.3", Now: at.Format(time.RFC3339), NotReady: hostile, Redundancy: &st, Rewrite: 5 << 30, Uncertain: hostile,
		Drives: Drives{Status: mirror.Status{InSync: 1, Mended: 2, Halted: hostile, Drives: []mirror.DriveStatus{{Name: "/disk1/objects", State: mirror.Synced, Index: true},
			{Name: "/disk2/" + hostile, State: mirror.Copying, Total: 100 << 30, Compared: 42 << 30, Errors: 3, Cause: hostile}}}, Scrubs: 4, Different: 2, Damaged: 1},
		Keys: []engine.KeyUsage{{Key: "", Records: 10, Bytes: 1000}, {Key: "2026-11", Given: true, Current: true, Records: 5000, Bytes: 9 << 30}, {Key: hostile, Records: 3, Bytes: 300}},
	}
	d.Usage = []engine.Usage{{Bucket: "metrics", Bytes: 7 << 30, Objects: 120_000, Quota: engine.Quota{Bytes: 10 << 30, Objects: 1_000_000}}, {Bucket: "logs", Bytes: 5 << 20, Objects: 12}}
	for i := range mostRows + 5 {
		d.Damages = append(d.Damages, engine.Damage{File: "log/0000000000000017", Offset: int64(i) << 20, Length: 4096, Reason: "checksum " + hostile, Bucket: "metrics", Key: hostile, Version: "v" + hostile})
	}
	d.Damages, d.MoreDamages = first(d.Damages)
	return d
}

// elements counts what a browser would build of a page, and gives its text.
func elements(t *testing.T, page string) (count map[string]int, text string) {
	t.Helper()
	root, err := html.Parse(strings.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	count = map[string]int{}
	var b strings.Builder
	for n := range root.Descendants() {
		switch n.Type {
		case html.ElementNode:
			count[n.Data]++
			for _, a := range n.Attr {
				if strings.HasPrefix(a.Key, "on") || (a.Key == "src" || a.Key == "href") && !strings.HasPrefix(a.Val, "/") {
					t.Errorf("<%s %s=%q>", n.Data, a.Key, a.Val)
				}
			}
		case html.TextNode:
			b.WriteString(n.Data)
		}
	}
	return count, b.String()
}

// TestStatusPageEscapes: names, keys and errors of others stay text, and the page loads nothing and runs nothing.
func TestStatusPageEscapes(t *testing.T) {
	w := httptest.NewRecorder()
	writeStatus(w, anything())
	if got := w.Header().Get("Content-Security-Policy"); w.Code != 200 || got != "default-src 'none'; style-src 'unsafe-inline'" {
		t.Errorf("%d, %q", w.Code, got)
	}
	page := w.Body.String()
	count, text := elements(t, page)
	for _, e := range []string{"script", "b", "img", "link", "iframe", "form", "object"} {
		if count[e] > 0 {
			t.Errorf("%d elements %s", count[e], e)
		}
	}
	// Each place that takes text of others has it whole: the state of the store, the drives (halted, name, cause), the ledger, two places, a
	// key, the uncertainty, and three of each damage.
	if got, want := strings.Count(text, hostile), 1+3+1+2+1+1+3*mostRows; got != want {
		t.Errorf("the text of others is there %d times, want %d", got, want)
	}
	for _, want := range []string{"Not ready", "1 of 2 have every acknowledged write", "42 GiB of 100 GiB", "version 3: 2 copies, from 4 MiB on 4 data and 2 parity shards", "draining", "lost", "full", "away", "25% of 8 TiB",
		"12, at most 400", "40, the oldest for 10m20s", "overdue by", "12 staged, 70123 durable", "12 coded (3 GiB), 1 wait", "70% of 10 GiB, 12% of 1000000 objects", "missing: these bodies are unreadable", "5 GiB are still to be written again", "5 more: /damage"} {
		if !strings.Contains(strings.Join(strings.Fields(text), " "), want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if at := os.Getenv("STATUS_PAGE"); at != "" { // to be looked at
		if err := os.WriteFile(at, []byte(page), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStatusPageOfAnEmptyStore has nothing to show and says so.
func TestStatusPageOfAnEmptyStore(t *testing.T) {
	w := httptest.NewRecorder()
	writeStatus(w, statusData{RedundancyError: hostile})
	_, text := elements(t, w.Body.String())
	for _, want := range []string{"Ready", "There is no bucket", "Nothing is stored", "None was found", hostile} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	for _, not := range []string{"Places", "Drives of the log", "lost whose keys"} {
		if strings.Contains(text, not) {
			t.Errorf("the page says %q", not)
		}
	}
}

func TestByteText(t *testing.T) {
	for n, want := range map[int64]string{-1: "–", 0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 1<<20 - 1: "1 MiB", 5 << 40: "5 TiB", 1<<63 - 1: "8 EiB"} {
		if got := byteText(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
	if got := fmt.Sprint(percentText(1, 0), percentText(1, 3)); got != "100%33%" {
		t.Error(got)
	}
}
