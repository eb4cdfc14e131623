package worktest

import (
	"bufio"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// motoStart is how long the emulator may take to start: Python imports much.
const motoStart = 2 * time.Minute

// Moto starts the emulator of AWS services and gives its URL; where it is not installed,
// the test is skipped and says so. It is no proof of anything that needs concurrency.
func Moto(t *testing.T) string {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed: no emulator (moto) to test against")
	}
	if err := exec.CommandContext(t.Context(), python, "-c", "import moto.server, flask").Run(); err != nil {
		t.Skip("moto is not installed (pip install 'moto[server]'): no emulator to test against")
	}
	// It chooses its port itself, and says which: one that is free now may be taken by then.
	cmd := exec.Command(python, "-u", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0")
	out, in := io.Pipe()
	cmd.Stdout, cmd.Stderr = in, in
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	url, ended := make(chan string, 1), make(chan struct{})
	var mu sync.Mutex
	var said []string
	go func() { // ends with the process
		defer close(ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			_, at, found := strings.Cut(lines.Text(), "Running on ")
			mu.Lock()
			if len(said) < 100 {
				said = append(said, lines.Text())
			}
			mu.Unlock()
			if found && len(url) == 0 {
				url <- strings.TrimSpace(at)
			}
		}
		_, _ = io.Copy(io.Discard, out) // after a line that is too long
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = in.Close()
		<-ended
	})
	select {
	case u := <-url:
		return u
	case <-time.After(motoStart):
	}
	mu.Lock()
	defer mu.Unlock()
	t.Fatalf("moto does not listen:\n%s", strings.Join(said, "\n"))
	return ""
}
