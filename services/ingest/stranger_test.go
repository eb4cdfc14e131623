package ingest_test

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"lightmetrics.dev/lightmetrics/internal/platform/rpc"
	"lightmetrics.dev/lightmetrics/pkg/identity"
	ingestv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/ingest/v1"
	"lightmetrics.dev/lightmetrics/services/ingest"
)

// TestStrangersLargeMessagesAreNotReceived: over real connections, a large message without
// credentials ends its connection and never waits for a slot; with them it is accepted.
func TestStrangersLargeMessagesAreNotReceived(t *testing.T) {
	principals := write(t, "principals.yaml", fmt.Sprintf("principals: [{name: web, token_sha256: %v, roles: [sender], agents: [\"web-*\"]}]", identity.Sum([]byte("web-token"))))
	c := launch(t, newStore(), bearer("web-token"), func(c *ingest.Config) {
		c.Auth = rpc.AuthConfig{Mode: rpc.AuthToken, PrincipalsFile: principals}
		c.Limits.Receivers = 1
	})
	eventually(t, "ready", func() bool { return c.NotReady() == nil })
	big := bigFrame(t, boot, 0, 3<<20)
	for _, token := range []string{"", "wrong"} {
		conn, err := rpc.Dial(c.GRPCAddr(), bearer(token))
		if err != nil {
			t.Fatal(err)
		}
		stranger := ingestv1.NewIngestServiceClient(conn)
		for range 3 {
			if _, err := stranger.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: big}); err == nil {
				t.Error("accepted without credentials")
			}
		}
		// A small one is told why.
		_, err = stranger.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: encode(t, boot, 0, 3, 0)})
		if status.Code(err) != codes.Unauthenticated || rpc.Reason(err) != rpc.ReasonUnauthenticated {
			t.Errorf("token %q: %v", token, err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := c.client.SubmitBatch(bound(t), &ingestv1.SubmitBatchRequest{Frame: big, SpoolId: "spool-1"}); err != nil {
		t.Errorf("with credentials: %v", err)
	}
}
