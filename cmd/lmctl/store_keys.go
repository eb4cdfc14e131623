package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

const (
	storeTimeout   = 10 * time.Second
	storeAdmin     = "127.0.0.1:4791"
	storeAdminHelp = "[http|https://]host:port of the store's admin address; " + storeVariable
)

func storeKeysCommand(out *format) *cobra.Command {
	addr := storeAdmin
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Show how much of an embedded object store is encrypted with each version of its key",
		Long: "Asks the admin address of a running store. A version can be taken out of the settings when it has no bytes.\n" +
			"Exits 3 when objects are encrypted with a key that the store was not given.",
		Example: "  lmctl store keys --addr 127.0.0.1:4791",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var r objectstore.KeyReport
			if err := askStore(cmd, addr, http.MethodGet, "/keys", nil, &r); err != nil {
				return err
			}
			if err := out.write(cmd.OutOrStdout(), r, keysTable(r)); err != nil {
				return err
			}
			for _, k := range r.Keys {
				if !k.Given && k.Bytes > 0 {
					return &cli.ExitError{Code: cli.ExitFindings, Err: fmt.Errorf("the store was not given the key %q (check %s), which %d bytes need", k.Key, k.Check, k.Bytes)}
				}
			}
			return nil
		},
	}
	storeAdminFlag(cmd, &addr)
	return cmd
}

// storeAdminFlag adds --addr, which the environment stands in for.
func storeAdminFlag(cmd *cobra.Command, addr *string) {
	cmd.Flags().StringVar(addr, "addr", *addr, storeAdminHelp)
	cmd.PreRun = func(cmd *cobra.Command, _ []string) {
		if !cmd.Flags().Changed("addr") {
			*addr = cmp.Or(os.Getenv(storeVariable), *addr)
		}
	}
}

func keysTable(r objectstore.KeyReport) table {
	t := table{header: []string{"KEY", "CHECK", "RECORDS", "BYTES", "STATE"}}
	for _, k := range r.Keys {
		name, state := k.Key, "may be removed"
		switch {
		case name == "":
			name, state = "(not encrypted)", ""
		case !k.Given:
			state = "not given"
		case k.Current:
			state = "current"
		case k.Bytes > 0:
			state = "needed"
		}
		t.rows = append(t.rows, []string{name, k.Check, fmt.Sprint(k.Records), fmt.Sprint(k.Bytes), state})
	}
	t.rows = append(t.rows, []string{"to be written again", "", "", fmt.Sprint(r.RewriteBytes), ""})
	return t
}

// askStore sends a request to the admin address of a store and decodes its answer into v.
func askStore(cmd *cobra.Command, addr, method, path string, body io.Reader, v any) error {
	hostport, scheme, err := parseAddress(addr, true)
	if err != nil {
		return err
	}
	if scheme == "" {
		scheme = "http"
	}
	r, err := http.NewRequestWithContext(cmd.Context(), method, scheme+"://"+hostport+path, body)
	if err != nil {
		return err
	}
	c := http.Client{Timeout: storeTimeout}
	resp, err := c.Do(r)
	if err != nil {
		return &cli.ExitError{Code: cli.ExitUnreachable, Err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return &cli.ExitError{Code: cli.ExitUnreachable, Err: err}
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s: %s", method, r.URL, resp.Status, plain(string(b)))
	}
	if err := json.Unmarshal(b, v); err != nil {
		return errors.Join(fmt.Errorf("%s %s", method, r.URL), err)
	}
	return nil
}
