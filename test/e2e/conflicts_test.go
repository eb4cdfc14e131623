package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"gopkg.in/yaml.v3"

	"lightmetrics.dev/lightmetrics/agent"
	"lightmetrics.dev/lightmetrics/internal/acceptance/resolution"
	"lightmetrics.dev/lightmetrics/internal/derived/fsck"
	"lightmetrics.dev/lightmetrics/internal/harness/cluster"
	"lightmetrics.dev/lightmetrics/internal/harness/proc"
	"lightmetrics.dev/lightmetrics/internal/layout"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/failpoint"
	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	reconcilerv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/reconciler/v1"
)

// clones are agents with one agent id, each with a directory and a page of its own.
type clones struct {
	c      *cluster.Cluster
	target string
	pages  map[string]string
}

func (k *clones) queue(name string) string { return filepath.Join(k.c.Dir(), name, "queue") }

// start starts an agent over the directory of that name. Every scrape is a batch of as many records.
func (k *clones) start(ctx context.Context, t *testing.T, name string) *proc.Process {
	t.Helper()
	p := k.launch(t, name)
	must(t, p.Ready(ctx))
	return p
}

// launch is start, for an agent that may end before it is ready.
func (k *clones) launch(t *testing.T, name string, env ...string) *proc.Process {
	t.Helper()
	port, err := proc.Reserve(0)
	must(t, err)
	page := port.Addr
	k.pages[name] = page
	settings := map[string]any{"agent": map[string]any{
		"http": map[string]any{"listen": page}, "agent_id": "cloned", "data_dir": filepath.Join(k.c.Dir(), name),
		"interval": "1s", "batch": map[string]any{"max_age": "100ms"}, "drain_timeout": "30s",
		"host":   map[string]any{"enabled": false},
		"scrape": []any{map[string]any{"job": "j", "url": k.target, "interval": "1s"}},
		"send":   map[string]any{"collectors": []string{k.c.Addr.Collectors[0].GRPC}, "settle_interval": "200ms", "backoff_max": "1s"},
	}}
	b, err := yaml.Marshal(settings)
	must(t, err)
	file := filepath.Join(k.c.Dir(), name+".yaml")
	must(t, os.WriteFile(file, b, 0o600))
	port.Release()
	p, err := proc.Start(proc.Spec{Name: name, Bin: bin, Dir: k.c.Dir(), ReadyURL: "http://" + page + "/status", Args: []string{"agent", "--config", file}, Env: env})
	must(t, err)
	t.Cleanup(p.Kill)
	return p
}

func (k *clones) status(ctx context.Context, name string) (st agent.Status, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+k.pages[name]+"/status", nil)
	if err != nil {
		return st, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return st, err
	}
	defer resp.Body.Close()
	return st, json.NewDecoder(resp.Body).Decode(&st)
}

// wait waits for a status of an agent.
func (k *clones) wait(ctx context.Context, t *testing.T, name, what string, ok func(agent.Status) bool) (st agent.Status) {
	t.Helper()
	must(t, cluster.Poll(ctx, name+": "+what, func() (bool, error) {
		var err error
		st, err = k.status(ctx, name)
		return err == nil && ok(st), err
	}))
	return st
}

// numbered waits until an agent has given out and sent n more numbers.
func (k *clones) numbered(ctx context.Context, t *testing.T, name string, n uint64) {
	t.Helper()
	first := k.wait(ctx, t, name, "a status", func(agent.Status) bool { return true }).Boot
	k.wait(ctx, t, name, "batches are accepted", func(st agent.Status) bool {
		return st.Queue.Pending == 0 && (st.Boot.BootID != first.BootID && st.Boot.NextSeq > n || st.Boot.NextSeq >= first.NextSeq+n)
	})
}

// TestAConflictOfACloneIsSettledFromElsewhere: the disk of an agent is cloned, and original and clone give out the same numbers. What
// lost is found and compared over the API, settled there, over two kills of the agent, and both agents go on. Roles that may not decide are refused.
func TestAConflictOfACloneIsSettledFromElsewhere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	principals := filepath.Join(dir, "principals.yaml")
	must(t, os.WriteFile(principals, fmt.Appendf(nil, "principals:\n  - {name: ann, token_sha256: %v, roles: [operator]}\n  - {name: rob, token_sha256: %v, roles: [reader]}\n",
		identity.Sum([]byte("ann-token")), identity.Sum([]byte("rob-token"))), 0o600))
	c := newCluster(t, cluster.Options{Collectors: 1, Adjust: func(process string, s map[string]any) {
		switch process {
		case "reconciler":
			s["auth"] = map[string]any{"mode": "token", "principals_file": principals}
			// For framesArePutBack.
			s["journal"] = map[string]any{"fold_interval": "200ms"}
			s["scrub"] = map[string]any{"period": "500ms", "rate": 1000}
			s["repairs"].(map[string]any)["interval"] = "500ms"
		case "query":
			s["follow"].(map[string]any)["frames_wait"] = "0s"
		case "collector-1":
			s["resolutions_interval"] = "200ms"
			delete(s, "notify")
		}
	}})
	ctx := within(t, 4*time.Minute)
	must(t, c.StartStore(ctx))
	must(t, c.StartCollector(ctx, 0))
	must(t, c.StartReconciler(ctx))
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "m1 %d\nm2 1\n", time.Now().UnixNano())
	}))
	t.Cleanup(target.Close)
	k := &clones{c: c, target: target.URL + "/metrics", pages: map[string]string{}}

	// The disk is copied while the agent is down, and the agent goes on from there.
	p := k.start(ctx, t, "machine")
	k.numbered(ctx, t, "machine", 1)
	must(t, p.Stop(time.Minute))
	must(t, os.CopyFS(filepath.Join(c.Dir(), "copy"), os.DirFS(k.queue("machine"))))
	p = k.start(ctx, t, "machine")
	k.numbered(ctx, t, "machine", 20)
	must(t, p.Stop(time.Minute))
	cluster.Kill(&c.Collectors[0])
	// A clone of a block device has the inodes of the original. Here the clone gets the directory itself, and the
	// original moves.
	must(t, os.MkdirAll(k.queue("original"), 0o700))
	move(t, k.queue("machine"), k.queue("original"))
	move(t, filepath.Join(c.Dir(), "copy"), k.queue("machine"))
	k.start(ctx, t, "original")
	p = k.start(ctx, t, "machine")
	k.wait(ctx, t, "machine", "it has given out numbers again", func(st agent.Status) bool { return st.Queue.Pending >= 3 })
	must(t, c.StartCollector(ctx, 0))
	held := k.wait(ctx, t, "machine", "it has parked what lost", func(st agent.Status) bool { return st.Queue.Parked >= 2 && st.Queue.Pending == 0 }).Parked

	dial := func(token string) reconcilerv1.ReconcilerServiceClient {
		conn, err := rpc.Dial(c.Addr.ReconcilerGRPC, rpc.ClientConfig{Token: config.Secret(token), TokenOverPlaintext: true})
		must(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		return reconcilerv1.NewReconcilerServiceClient(conn)
	}
	ann, rob := dial("ann-token"), dial("rob-token")
	list, err := rob.ListConflicts(ctx, &reconcilerv1.ListConflictsRequest{Unresolved: true})
	must(t, err)
	if len(list.GetConflicts()) != len(held) {
		t.Fatalf("%d conflicts, %d parked", len(list.GetConflicts()), len(held))
	}
	must(t, cluster.Poll(ctx, "where they are parked is known", func() (bool, error) {
		list, err := rob.ListConflicts(ctx, &reconcilerv1.ListConflictsRequest{})
		return err == nil && list.GetConflicts()[len(held)-1].GetParkedAt().GetPage() == "http://"+k.pages["machine"], err
	}))
	names := make([]*reconcilerv1.ConflictName, len(held))
	for i, of := range list.GetConflicts() {
		names[i] = &reconcilerv1.ConflictName{BootId: of.GetBootId(), SeqStart: of.GetSeqStart(), SeqEnd: of.GetSeqEnd(), SubmittedSha256: of.GetSubmittedSha256()}
	}
	one := list.GetConflicts()[0]
	both, err := rob.GetConflict(ctx, &reconcilerv1.GetConflictRequest{AgentId: "cloned", BootId: one.GetBootId(), SeqStart: one.GetSeqStart(), SeqEnd: one.GetSeqEnd(), SubmittedSha256: one.GetSubmittedSha256()})
	must(t, err)
	// Two machines scraped at other times: no record has the same time.
	if n := both.GetAccepted().GetRecords(); n == 0 || both.GetOnlyAccepted() != n || both.GetOnlySubmitted() != n || len(both.GetDifferences()) == 0 || one.GetParkedId() != held[0].ID && one.GetParkedId() == "" {
		t.Errorf("compared: %v", both)
	}

	// A reader sees, and does not decide: over gRPC and over HTTP.
	dropped := &reconcilerv1.ResolveConflictsRequest{AgentId: "cloned", Action: "accept_existing", Conflicts: names[:1]}
	if _, err := rob.ResolveConflicts(ctx, dropped); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a reader decided: %v", err)
	}
	if _, err := rob.SetQuarantine(ctx, &reconcilerv1.SetQuarantineRequest{AgentId: "cloned"}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a reader decided: %v", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.Addr.ReconcilerHTTP+"/v1/reconciler/resolutions", http.NoBody)
	must(t, err)
	req.Header.Set("Authorization", "Bearer rob-token")
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	must(t, resp.Body.Close())
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("a reader over HTTP: %s", resp.Status)
	}

	framesArePutBack(ctx, t, c, rob, ann, one)

	_, err = ann.ResolveConflicts(ctx, dropped)
	must(t, err)
	_, err = ann.ResolveConflicts(ctx, &reconcilerv1.ResolveConflictsRequest{AgentId: "cloned", Action: "keep_both", Conflicts: names[1:], Note: "a clone"})
	must(t, err)
	// The agent dies when it has queued records under new numbers, and again when the collector has recorded that.
	must(t, p.Stop(time.Minute))
	for _, point := range []string{"queued", "told"} {
		p = k.launch(t, "machine", failpoint.Env+"=agent.send.settle."+point+"="+failpoint.Kill)
		select {
		case <-p.Exited():
		case <-ctx.Done():
			t.Fatalf("the agent does not come to %s: %s", point, p.Tail(20))
		}
	}
	k.start(ctx, t, "machine")
	k.wait(ctx, t, "machine", "nothing is parked", func(st agent.Status) bool { return st.Queue.Parked == 0 && st.Queue.Pending == 0 })
	list, err = rob.ListConflicts(ctx, &reconcilerv1.ListConflictsRequest{})
	must(t, err)
	store, err := c.OpenStore(ctx)
	must(t, err)
	for i, of := range list.GetConflicts() {
		if of.GetSettlement() == nil || of.GetResolution().GetPrincipal() != "ann" {
			t.Errorf("%d: %v", i, of)
			continue
		}
		sum, err := identity.ParseDigest(of.GetSubmittedSha256())
		must(t, err)
		kept := resolution.Kept("cloned", sum)
		_, err = store.Head(ctx, layout.Accepted(identity.Batch{Agent: kept.Agent, Boot: kept.Boot, SeqStart: 1, SeqEnd: of.GetSeqEnd() - of.GetSeqStart() + 1}))
		if is, want := err == nil, i > 0; is != want {
			t.Errorf("%d: kept %v, want %v: %v", i, is, want, err)
		}
	}
	for _, name := range []string{"machine", "original"} {
		k.numbered(ctx, t, name, 10)
	}

	// One of both in quarantine: its batches wait, the other one goes on.
	clone := k.wait(ctx, t, "machine", "a status", func(agent.Status) bool { return true }).Boot.BootID
	_, err = ann.SetQuarantine(ctx, &reconcilerv1.SetQuarantineRequest{AgentId: "cloned", BootId: clone})
	must(t, err)
	k.wait(ctx, t, "machine", "its batches wait", func(st agent.Status) bool { return st.Queue.Pending >= 3 })
	k.numbered(ctx, t, "original", 10)
	_, err = ann.SetQuarantine(ctx, &reconcilerv1.SetQuarantineRequest{AgentId: "cloned", BootId: clone, Release: true})
	must(t, err)
	st := k.wait(ctx, t, "machine", "its batches are accepted", func(st agent.Status) bool { return st.Queue.Pending == 0 })
	if st.Queue.Dead != 0 || st.Queue.Parked != 0 {
		t.Errorf("%+v", st.Queue)
	}
	report, err := fsck.Run(ctx, store, fsck.Options{AuthorityID: cluster.Authority})
	must(t, err)
	for _, f := range report.Findings {
		t.Error(f)
	}
}

// move moves what is in a directory into another one.
func move(t *testing.T, from, to string) {
	t.Helper()
	list, err := os.ReadDir(from)
	must(t, err)
	for _, e := range list {
		must(t, os.Rename(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())))
	}
}
