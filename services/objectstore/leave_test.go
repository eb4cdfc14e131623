package objectstore_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// become waits until a place is in a state.
func become(t *testing.T, addr, place, state string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		var s objectstore.RedundancyStatus
		admin(t, addr, http.MethodGet, "/redundancy", "", "", &s)
		for _, p := range s.Places {
			if p.Name == place && p.State == state {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not become %s: %+v", place, state, s.Places)
		}
	}
}

// refusedStart runs a store that must not start, and gives the error.
func refusedStart(t *testing.T, cfg objectstore.Config) error {
	t.Helper()
	svc, err := objectstore.New(cfg, objectstore.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return svc.Run(ctx)
}

// TestPlaceLeaves: a place of a running store is emptied, across a restart, and left out; one that will not return is given up, and what
// was lost with it is told by name.
func TestPlaceLeaves(t *testing.T) {
	t.Parallel() // most of it is waiting
	cfg := coded(t, t.TempDir(), 4)
	s := start(t, cfg)
	bodies := map[string][]byte{}
	for n := range 6 {
		bodies[fmt.Sprint("k", n)] = append(large(1+n%3), byte(n))
		put(t, s.client(), fmt.Sprint("k", n), bodies[fmt.Sprint("k", n)])
	}
	files := int64(2*2 + 4*3) // below 2 MiB they are copied
	settled(t, s.AdminAddr(), files)
	post := func(in string, to any) int {
		return admin(t, s.AdminAddr(), http.MethodPost, "/redundancy/places", "application/json", in, to)
	}
	var problem struct{ Error, Reason, Message, Code string }
	for in, want := range map[string]int{`{"place":"nobody","action":"drain"}`: 404, `{"place":"drive3","action":"burn"}`: 400, `[]`: 400, `{"place":"drive3","action":"undrain"}`: 409, `{"place":"drive3","action":"lost"}`: 409} {
		if got := post(in, &problem); got != want {
			t.Errorf("%s: %d, want %d", in, got, want)
		}
	}
	without := cfg
	without.Places = cfg.Places[:3]
	if got := post(`{"place":"drive3","action":"drain"}`, nil); got != 200 {
		t.Fatal(got)
	}
	if got := post(`{"place":"drive2","action":"drain"}`, nil); got != 409 {
		t.Errorf("another place: %d", got)
	}
	s.stop() // at any moment
	s = start(t, cfg)
	become(t, s.AdminAddr(), "drive3", "drained")
	settled(t, s.AdminAddr(), files)
	if n := len(filesOf(t, cfg.Places[3])); n != 0 {
		t.Errorf("%d files are left", n)
	}
	s.stop()
	s = start(t, without)
	for k, b := range bodies {
		if !bytes.Equal(get(t, s.client(), k), b) {
			t.Errorf("%s is another body", k)
		}
	}
	s.stop()
	if err := refusedStart(t, func() objectstore.Config { c := without; c.Places = cfg.Places[:2]; c.Redundancy.Data = 0; return c }()); err == nil || !strings.Contains(err.Error(), "drive2") || !strings.Contains(err.Error(), "drain") {
		t.Fatalf("a place with files was left out: %v", err)
	}
	without.Redundancy.Data, without.Redundancy.Parity, without.Redundancy.Copies = 0, 0, 2

	// Two of three are gone: what only they had is lost.
	s = start(t, without)
	settled(t, s.AdminAddr(), 2*6)
	s.stop()
	for _, p := range without.Places[1:3] {
		if err := os.Rename(p.Dir, p.Dir+"-gone"); err != nil {
			t.Fatal(err)
		}
	}
	without.AckCopies = 1
	s = start(t, without)
	addr := s.AdminAddr()
	// The ledger believes that each has the files of the other, so one may go, and is the last that may.
	var second objectstore.PlaceLosses
	if got := post(`{"place":"drive1","action":"lost"}`, &second); got != 200 || second.Bodies != 0 {
		t.Fatalf("%d, %+v", got, second)
	}
	// On a loaded machine it takes a moment until the ledger has dropped what drive1 had.
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		second = objectstore.PlaceLosses{}
		admin(t, addr, http.MethodGet, "/redundancy/losses?place=drive2", "", "", &second)
		if len(second.Objects) > 0 || time.Now().After(end) {
			break
		}
	}
	if len(second.Objects) == 0 || int(second.Bodies) != len(second.Objects) || second.Objects[0].Bucket != bucket {
		t.Fatalf("%+v", second)
	}
	if got := post(`{"place":"drive2","action":"lost"}`, nil); got != 409 {
		t.Errorf("lost without force: %d", got)
	}
	if got := post(`{"place":"drive2","action":"lost","force":true}`, &second); got != 200 {
		t.Fatal(got)
	}
	lost := map[string]bool{}
	for _, o := range second.Objects {
		lost[o.Key] = true
	}
	s.stop()
	without.Places, without.Redundancy.Copies = cfg.Places[:1], 1
	s = start(t, without)
	for k, b := range bodies {
		if lost[k] {
			if _, err := s.client().GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: &k}); err == nil {
				t.Errorf("%s was said to be lost, and is there", k)
			}
		} else if !bytes.Equal(get(t, s.client(), k), b) {
			t.Errorf("%s is another body", k)
		}
	}
}
