package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/cli"
	core "lightmetrics.dev/lightmetrics/internal/coordination/claims" // lmctl has a function of the package's name
	"lightmetrics.dev/lightmetrics/internal/coordination/coordinator"
	"lightmetrics.dev/lightmetrics/internal/coordination/linearizer"
	"lightmetrics.dev/lightmetrics/internal/coordination/regions"
	"lightmetrics.dev/lightmetrics/internal/coordination/trace"
	"lightmetrics.dev/lightmetrics/internal/objstore"
)

// linearizing is a coordinator with regions, of which a test says what they answer.
type linearizing struct {
	status  regions.Status
	notOpen error
	added   error
	claims  core.Answer
	failed  error
	ended   error
	traced  trace.Result
	asked   trace.Query
	// prepared are what calls for a preparation get, one after the other; the last one ends it.
	prepared []regions.Preparation
}

func (l *linearizing) Do(_ context.Context, ops []core.Op) []linearizer.Result {
	return []linearizer.Result{{Answer: l.claims, Err: l.failed}}
}

func (l *linearizing) Regions(context.Context) (regions.Status, []core.Region, error, error) {
	return l.status, []core.Region{"asia", "eu", "us"}, l.notOpen, l.failed
}

func (l *linearizing) AddRegion(_ context.Context, r core.Region) (regions.Opened, error) {
	return regions.Opened{Epoch: core.Epoch{Number: 8}, Recovered: regions.Progress{Claims: 12}}, l.added
}

func (l *linearizing) PrepareRegion(_ context.Context, r core.Region) (p regions.Preparation, all bool, err error) {
	if l.failed != nil {
		return p, false, l.failed
	}
	p, l.prepared = l.prepared[0], l.prepared[1:]
	return p, len(l.prepared) == 0, nil
}

func (l *linearizing) RetireRegion(_ context.Context, r core.Region, forget bool) (regions.Opened, error) {
	if !forget {
		return regions.Opened{Epoch: core.Epoch{Number: 9}, Recovered: regions.Progress{Claims: 3}}, l.added
	}
	return regions.Opened{Epoch: core.Epoch{Number: 10}}, nil
}

func (l *linearizing) Dissolve(context.Context, core.Region) (regions.Record, error) {
	return regions.Record{Number: 11}, l.ended
}

func (l *linearizing) Trace(_ context.Context, q trace.Query) trace.Result {
	l.asked = q
	return l.traced
}

func serveIdentities(t *testing.T, c coordinator.Claimer) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	coordinator.NewIdentityServer(c, time.Now).Register(g)
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		<-done
	})
	return l.Addr().String()
}

// recordOf is the record as it lies in the bucket of a region.
func recordOf(rec regions.Record, r core.Region) regions.Record {
	rec.Region = r
	return rec
}

func TestRegions(t *testing.T) {
	rec := regions.Record{Number: 7, ID: core.ID{0xab}, Regions: []core.Region{"eu", "us"}}
	of := func(r core.Region) regions.Record { return recordOf(rec, r) }
	l := &linearizing{status: regions.Status{Epoch: rec.Epoch(), Newest: rec, Cluster: 0xc, Records: map[core.Region]regions.Record{"eu": of("eu"), "us": of("us")}}}
	addr := serveIdentities(t, l)
	list := func(more ...string) (string, int) {
		return command(t, regionsCommand, append([]string{"regions", "list", "--addr", addr}, more...)...)
	}
	out, code := list("-o", "json")
	var v membersView
	if err := json.Unmarshal([]byte(out), &v); err != nil || code != cli.ExitOK || v.Epoch != 7 || v.Cluster != "000000000000000c" || len(v.Regions) != 3 {
		t.Fatalf("exit %d, %v: %s", code, err, out)
	}
	if v.Regions[0].Member || !v.Regions[1].Member || v.Regions[1].Epoch != 7 || !strings.HasPrefix(v.Regions[1].EpochID, "ab") {
		t.Errorf("%+v", v)
	}
	if out, code = list(); code != cli.ExitOK || !strings.Contains(out, "not added yet") || strings.Count(out, "takes part") != 2 {
		t.Errorf("exit %d: %s", code, out)
	}
	if !regexp.MustCompile(`(?m)^asia +- +- `).MatchString(out) {
		t.Errorf("a region without an epoch is shown with one: %s", out)
	}
	// Whether it takes part is known of the other regions.
	l.status.Unread = []*regions.RegionError{{Op: "read the epoch", Region: "us", Err: errors.New("no answer")}}
	delete(l.status.Records, "us")
	if out, code = list(); code != cli.ExitFindings || !regexp.MustCompile(`(?m)^us +- +- +- +takes part; .*no answer`).MatchString(out) {
		t.Errorf("a bucket that can't be read: exit %d: %s", code, out)
	}
	l.status.Unread = nil
	if out, code = list(); code != cli.ExitFindings || !regexp.MustCompile(`(?m)^us +- +- +- +takes part; its bucket has no record`).MatchString(out) {
		t.Errorf("an empty bucket: exit %d: %s", code, out)
	}
	// A bucket of another region's, and a region that takes part and is in no settings, as where a name was changed.
	l.status.Unread, l.status.Records = nil, map[core.Region]regions.Record{"asia": of("mars"), "eu": of("eu"), "us": of("us")}
	rec.Regions = []core.Region{"eu", "mars", "us"}
	l.status.Newest = rec
	for n := range l.status.Records {
		l.status.Records[n] = of(l.status.Records[n].Region)
	}
	if out, code = list(); code != cli.ExitFindings || !regexp.MustCompile(`(?m)^asia .* its bucket is that of region mars`).MatchString(out) ||
		!regexp.MustCompile(`(?m)^mars +- +- +- +takes part; it has no bucket in the settings`).MatchString(out) {
		t.Errorf("a region of another name: exit %d: %s", code, out)
	}
	rec.Regions = []core.Region{"eu", "us"}
	l.status.Newest = rec
	l.status.Records = map[core.Region]regions.Record{"eu": of("eu"), "us": of("us")}
	l.notOpen = errors.New("somebody has to recover")
	if out, code = list(); code != cli.ExitFindings || !strings.Contains(out, "somebody has to recover") {
		t.Errorf("not open: exit %d: %s", code, out)
	}
	l.failed = errors.New("no etcd")
	if out, code = list(); code != cli.ExitUnreachable || !strings.Contains(out, "no etcd") {
		t.Errorf("no etcd: exit %d: %s", code, out)
	}

	add := func(name string) (string, int) {
		return command(t, regionsCommand, "regions", "add", name, "--addr", addr, "-o", "json")
	}
	var a addedView
	out, code = add("asia")
	if err := json.Unmarshal([]byte(out), &a); err != nil || code != cli.ExitOK || a != (addedView{"asia", 8, 12}) {
		t.Errorf("exit %d, %v: %s", code, err, out)
	}
	if out, code = add("Asia"); code != cli.ExitUsage {
		t.Errorf("a name that is none: exit %d: %s", code, out)
	}
	// A script tries again what may pass by itself, and not what a person has to mend.
	for err, want := range map[error]int{regions.ErrOvertaken: cli.ExitUnreachable, regions.ErrRegionSettings: cli.ExitFailed, regions.ErrUnprepared: cli.ExitFailed, regions.ErrTooManyClaims: cli.ExitFailed,
		objstore.ErrDenied: cli.ExitFailed, objstore.ErrNoBucket: cli.ExitFailed, objstore.ErrUnavailable: cli.ExitUnreachable} {
		l.added = fmt.Errorf("add region mars: %w", err)
		if out, code = add("mars"); code != want || !strings.Contains(out, err.Error()) {
			t.Errorf("%v: exit %d, want %d: %s", err, code, want, out)
		}
	}
}

func TestDissolveTheLinearizer(t *testing.T) {
	rec := regions.Record{Region: "eu", Number: 11, ID: core.ID{0xab}, Regions: []core.Region{"eu"}, Retired: []regions.Retired{{Name: "us", Done: true}}, Dissolved: true}
	l := &linearizing{status: regions.Status{Newest: rec, Records: map[core.Region]regions.Record{"eu": rec}}, notOpen: errors.New("it was dissolved")}
	addr := serveIdentities(t, l)
	dissolve := func(more ...string) (string, int) {
		return command(t, regionsCommand, append([]string{"regions", "dissolve", "--addr", addr, "-o", "json"}, more...)...)
	}
	if out, code := dissolve("eu"); code != cli.ExitUsage || !strings.Contains(out, "--yes") {
		t.Errorf("exit %d: %s", code, out)
	}
	var v dissolvedView
	out, code := dissolve("eu", "--yes")
	if err := json.Unmarshal([]byte(out), &v); err != nil || code != cli.ExitOK || v != (dissolvedView{"eu", 11}) {
		t.Errorf("exit %d, %v: %s", code, err, out)
	}
	if out, code := dissolve("Eu!", "--yes"); code != cli.ExitUsage {
		t.Errorf("a name that is none: exit %d: %s", code, out)
	}
	// A script tries again what may pass by itself, and not what a person has to mend.
	for err, want := range map[error]int{
		&regions.UndecidedError{Claimed: 3}: cli.ExitFailed, regions.ErrRegionSettings: cli.ExitFailed, regions.ErrOvertaken: cli.ExitUnreachable, regions.ErrMustRecover: cli.ExitUnreachable,
	} {
		l.ended = fmt.Errorf("dissolve: %w", err)
		if out, code := dissolve("eu", "--yes"); code != want || !strings.Contains(out, err.Error()) {
			t.Errorf("%v: exit %d, want %d: %s", err, code, want, out)
		}
	}
	out, code = command(t, regionsCommand, "regions", "list", "--addr", addr)
	if code != cli.ExitFindings || !strings.Contains(out, "accepts without the linearizer") || strings.Count(out, "retired") != 1 || strings.Contains(out, "takes part") {
		t.Errorf("exit %d: %s", code, out)
	}
}

func TestPrepareARegion(t *testing.T) {
	rec := regions.Record{Number: 7, ID: core.ID{0xab}, Regions: []core.Region{"eu", "us"}, Joining: []core.Region{"us"}}
	done := regions.Preparation{Region: "asia", Through: 9, Batches: 1200, Left: 3, AcceptedAt: 1e18, UpdatedAt: 2e18}
	l := &linearizing{status: regions.Status{
		Epoch: rec.Epoch(), Newest: rec, Records: map[core.Region]regions.Record{"eu": recordOf(rec, "eu"), "us": recordOf(rec, "us")},
		Prepared: map[core.Region]regions.Preparation{"asia": done, "eu": {Region: "eu", Folded: 2, FoldedBatches: 44, AcceptedAt: 1, UpdatedAt: 5}},
	}}
	addr := serveIdentities(t, l)
	l.prepared = []regions.Preparation{{Region: "asia", Through: 4, Batches: 600, AcceptedAt: 5, UpdatedAt: 6}, done}
	out, code := command(t, regionsCommand, "regions", "prepare", "asia", "--addr", addr)
	if code != cli.ExitOK || !strings.Contains(out, "1200") || !strings.Contains(out, "2001-09-09T01:46:40Z") {
		t.Errorf("exit %d: %s", code, out)
	}
	l.prepared = []regions.Preparation{done}
	var v preparedView
	out, code = command(t, regionsCommand, "regions", "prepare", "asia", "--addr", addr, "-o", "json")
	if err := json.Unmarshal([]byte(out), &v); err != nil || code != cli.ExitOK || v != (preparedView{"asia", 1200, 3, 0, "2001-09-09T01:46:40Z", "2033-05-18T03:33:20Z"}) {
		t.Errorf("exit %d, %v: %s", code, err, out)
	}
	for err, want := range map[error]int{objstore.ErrUnavailable: cli.ExitUnreachable, regions.ErrRegionSettings: cli.ExitFailed} {
		l.failed = err
		if out, code = command(t, regionsCommand, "regions", "prepare", "asia", "--addr", addr); code != want {
			t.Errorf("%v: exit %d, want %d: %s", err, code, want, out)
		}
	}
	l.failed = nil
	out, code = command(t, regionsCommand, "regions", "list", "--addr", addr)
	for _, want := range []string{"1200 through 2001-09-09T01:46:40Z", "lmctl regions prepare, then add", "44 through", "is being added"} {
		if code != cli.ExitOK || !strings.Contains(out, want) {
			t.Errorf("exit %d, %s: %s", code, want, out)
		}
	}
}

func TestRetireARegion(t *testing.T) {
	rec := regions.Record{Number: 9, ID: core.ID{0xab}, Regions: []core.Region{"eu", "us"}, Retired: []regions.Retired{{Name: "asia"}, {Name: "mars", Done: true}}}
	l := &linearizing{status: regions.Status{
		Epoch: rec.Epoch(), Newest: rec, Records: map[core.Region]regions.Record{"eu": recordOf(rec, "eu"), "us": recordOf(rec, "us")}, Unread: []*regions.RegionError{{Op: "read the epoch", Region: "asia", Err: errors.New("no answer")}},
	}}
	addr := serveIdentities(t, l)
	retire := func(more ...string) (string, int) {
		return command(t, regionsCommand, append([]string{"regions", "retire", "--addr", addr, "-o", "json"}, more...)...)
	}
	if out, code := retire("asia"); code != cli.ExitUsage || !strings.Contains(out, "--yes") {
		t.Errorf("exit %d: %s", code, out)
	}
	for want, args := range map[addedView][]string{{"asia", 9, 3}: {"asia", "--yes"}, {"asia", 10, 0}: {"asia", "--yes", "--forget"}} {
		var v addedView
		out, code := retire(args...)
		if err := json.Unmarshal([]byte(out), &v); err != nil || code != cli.ExitOK || v != want {
			t.Errorf("%v: exit %d, %v: %s", args, code, err, out)
		}
	}
	if out, code := retire("Asia", "--yes"); code != cli.ExitUsage {
		t.Errorf("a name that is none: exit %d: %s", code, out)
	}
	for err, want := range map[error]int{regions.ErrOvertaken: cli.ExitUnreachable, regions.ErrForgets: cli.ExitFailed} {
		l.added = fmt.Errorf("retire region asia: %w", err)
		if out, code := retire("asia", "--yes"); code != want || !strings.Contains(out, err.Error()) {
			t.Errorf("%v: exit %d, want %d: %s", err, code, want, out)
		}
	}
	// One that is gone is no finding, also where the settings do not name it any more.
	out, code := command(t, regionsCommand, "regions", "list", "--addr", addr)
	if code != cli.ExitOK || strings.Count(out, "retired") != 2 || strings.Count(out, "takes part") != 2 || !strings.Contains(out, "mars") {
		t.Errorf("exit %d: %s", code, out)
	}
}
