package proc

import (
	"runtime"
	"syscall"
)

// deathSignal: the child dies with its parent, and has a process group of its own, so that an
// interrupt from the terminal reaches the parent alone, which ends its children in order.
func deathSignal() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

func lockThread() { runtime.LockOSThread() }
