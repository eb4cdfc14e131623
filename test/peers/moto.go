package peers

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// StartMoto serves an emulator of SQS, SNS and EventBridge, moto, until the test ends, and gives its URL. It is a package of
// Python that is not everywhere: the test is skipped where it is missing. It checks no signatures.
func StartMoto(t testing.TB) string {
	t.Helper()
	if err := hasMoto(); err != nil {
		t.Skip(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	l.Close() // another process may take the port first: then the server ends and the test says so
	cmd := exec.Command("python3", "-m", "moto.server", "-H", host, "-p", port)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Kill()
		ended <- <-ended
	})
	url := "http://" + net.JoinHostPort(host, port)
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	for {
		err := answers(ctx, url)
		if err == nil {
			return url
		}
		select {
		case e := <-ended:
			ended <- e
			t.Fatalf("moto ended: %v", e)
		case <-ctx.Done():
			t.Fatalf("moto does not answer: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// hasMoto says why moto can't be started; nil where it can.
var hasMoto = sync.OnceValue(func() error {
	if out, err := exec.Command("python3", "-c", "import moto.server").CombinedOutput(); err != nil {
		return fmt.Errorf("needs the Python package moto with its server: %w, %.200s", err, out)
	}
	return nil
})

func answers(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/moto-api/data.json", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s", resp.Status)
	}
	return nil
}
