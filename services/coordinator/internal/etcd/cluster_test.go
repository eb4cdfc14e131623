package etcd

import (
	"context"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/internal/coordination/work/worktest"
	"lightmetrics.dev/lightmetrics/internal/harness/proc"
)

// freePorts finds addresses for members that must know one another before they listen.
func freePorts(t testing.TB, n int) []string {
	t.Helper()
	free, err := proc.Fixed(n)
	if err != nil {
		t.Fatal(err)
	}
	return free
}

// leaderOf waits until a member leads: on a busy machine they may elect again.
func leaderOf(t *testing.T, members []clusterMember) int {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for i, m := range members {
			if uint64(m.Server.Leader()) == uint64(m.Server.MemberID()) {
				return i
			}
		}
	}
	t.Fatal("no member is the leader")
	return -1
}

// TestClusterWithAMemberStopped: two members of three, after the leader has stopped, keep every promise.
func TestClusterWithAMemberStopped(t *testing.T) {
	t.Parallel()
	members := startMembers(t, 3)
	c := dial(t, members)
	members[leaderOf(t, members)].stop()
	deadline := time.Now().Add(time.Minute)
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		_, err := c.Put(ctx, "/ready", "1")
		cancel()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("two members of three have no leader: %v", err)
		}
	}
	open := opener(c)
	t.Run("queue", func(t *testing.T) {
		t.Parallel()
		worktest.Queue(t, open)
	})
	t.Run("table", func(t *testing.T) {
		t.Parallel()
		worktest.Table(t, open)
	})
}
