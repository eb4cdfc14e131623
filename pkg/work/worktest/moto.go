package worktest

import (
	"bytes"
	"net"
	"os/exec"
	"testing"
	"time"
)

// Moto starts the emulator of AWS services and gives its URL; where it is not installed,
// the test is skipped and says so. It is no proof of anything that needs concurrency.
func Moto(t *testing.T) string {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed: no emulator (moto) to test against")
	}
	if err := exec.CommandContext(t.Context(), python, "-c", "import moto.server").Run(); err != nil {
		t.Skip("moto is not installed (pip install 'moto[server]'): no emulator to test against")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	l.Close()
	var log bytes.Buffer
	cmd := exec.Command(python, "-m", "moto.server", "-H", "127.0.0.1", "-p", port)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for range 600 {
		if c, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
			c.Close()
			return "http://" + addr
		}
		time.Sleep(100 * time.Millisecond)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	t.Fatalf("moto does not listen:\n%s", log.String())
	return ""
}
