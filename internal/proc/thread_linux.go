package proc

import (
	"runtime"
	"syscall"
)

func deathSignal() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

func lockThread() { runtime.LockOSThread() }
