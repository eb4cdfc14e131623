package robustness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stopFor is how long a process that stopped itself stays so.
const stopFor = 400 * time.Millisecond

// resumeStopped continues children that stopped themselves, a while after each. The returned
// function ends that and says how many there were.
func resumeStopped(ctx context.Context) (end func() int) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	n := 0
	wg.Go(func() {
		for {
			pids := stoppedChildren()
			select {
			case <-ctx.Done():
				if len(pids) == 0 {
					return
				}
			case <-time.After(stopFor):
			}
			for _, pid := range pids { // at the end too: nobody else would
				if syscall.Kill(pid, syscall.SIGCONT) == nil {
					n++
				}
			}
		}
	})
	return func() int { cancel(); wg.Wait(); return n }
}

// stoppedChildren are this process's children in the state T.
func stoppedChildren() (pids []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // ended meanwhile
		}
		// pid (name) state ppid …
		_, rest, _ := strings.Cut(string(b), ") ")
		if strings.HasPrefix(rest, fmt.Sprintf("T %d ", os.Getpid())) {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
