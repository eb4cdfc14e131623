package peers

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"
)

// run runs cmd under buildTimeout; its error holds the output.
func run(cmd *exec.Cmd) error {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return err
	}
	late := time.AfterFunc(buildTimeout, func() { cmd.Process.Kill() })
	err := cmd.Wait()
	if !late.Stop() {
		err = errors.Join(err, fmt.Errorf("killed after %v", buildTimeout))
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out.Bytes())
	}
	return nil
}

// build leaves it to the go command's cache to know whether anything changed. name is the binary's in build/peers, and
// module the folder of the module beside this file.
func build(name, module string, args ...string) (string, error) {
	_, file, _, _ := runtime.Caller(0)
	here := filepath.Dir(file)
	bin := filepath.Join(here, "..", "..", "build", "peers", name)
	if err := os.MkdirAll(filepath.Dir(bin), 0o755); err != nil {
		return "", err
	}
	cmd := exec.Command("go", append([]string{"build", "-o", bin}, args...)...)
	cmd.Dir = filepath.Join(here, module)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	return bin, run(cmd)
}
