package peers

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
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
