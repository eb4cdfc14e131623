//go:build unix

package failpoint

import (
	"os"
	"syscall"
)

// killSelf does not return: no statement after the point may run.
func killSelf() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func stopSelf() { _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) }
