package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/agent"
	"lightmetrics.dev/lightmetrics/internal/cli"
)

const (
	agentTimeout = 10 * time.Second
	maxAnswer    = 4 << 20
	// tokenVariable holds the token of the agent's HTTP address: a flag would show in the process list.
	tokenVariable = "LMCTL_AGENT_TOKEN"
)

func agentCommand(out *format) *cobra.Command {
	var addr string
	cmd := &cobra.Command{Use: "agent", Short: "Look at an agent and resolve its conflicts"}
	cmd.PersistentFlags().StringVar(&addr, "addr", "http://127.0.0.1:4320", "[http|https://]host:port of the agent's HTTP address; LMCTL_AGENT_ADDR, or the context in use")
	cmd.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if !cmd.Flags().Changed("addr") {
			d, err := currentDeployment()
			if err != nil {
				return err
			}
			addr = cmp.Or(os.Getenv("LMCTL_AGENT_ADDR"), d.Agent, addr)
		}
		hostport, scheme, err := parseAddress(addr, true)
		if err != nil {
			return err
		}
		addr = cmp.Or(scheme, "http") + "://" + hostport
		return nil
	}
	cmd.AddCommand(
		&cobra.Command{
			Use:   "status",
			Short: "Queue, collectors, parked conflicts; exits 3 when something needs a person",
			Args:  cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				b, err := agentRequest(cmd.Context(), http.MethodGet, addr, "/status")
				if err != nil {
					return err
				}
				var st agent.Status
				if err := json.Unmarshal(b, &st); err != nil {
					return fmt.Errorf("%s/status: %w", addr, err)
				}
				if err := out.write(cmd.OutOrStdout(), st, statusTable(st)); err != nil {
					return err
				}
				if len(st.Alerts) > 0 {
					lines := make([]string, len(st.Alerts))
					for i, a := range st.Alerts {
						lines[i] = a.String()
					}
					return &cli.ExitError{Code: cli.ExitFindings, Err: errors.New(strings.Join(lines, "\n"))}
				}
				return nil
			},
		},
		&cobra.Command{
			Use:   "accept-existing ID",
			Short: "Give up a parked frame: the batch that was accepted for its identity stands",
			Long: "Drops a parked frame from the agent's disk. The frame stays quarantined in the bucket. " + tokenVariable +
				" holds the agent's token where it wants one.",
			Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				_, err := agentRequest(cmd.Context(), http.MethodPost, addr, "/conflicts/"+url.PathEscape(args[0])+"/accept-existing")
				return err
			},
		})
	return cmd
}

func statusTable(st agent.Status) table {
	t := table{header: []string{"WHAT", "VALUE"}, rows: [][]string{
		{"agent", st.Boot.AgentID}, {"boot", st.Boot.BootID}, {"next sequence", fmt.Sprint(st.Boot.NextSeq)},
		{"pending", fmt.Sprintf("%d batches, %d bytes, oldest %.0f s", st.Queue.Pending, st.Queue.PendingBytes, st.Queue.OldestAgeSeconds)},
		{"disk", fmt.Sprintf("%d of %d bytes, when full %s", st.Queue.DiskBytes, st.Queue.MaxBytes, st.Queue.Policy)},
		{"dead letters", fmt.Sprint(st.Queue.Dead)},
	}}
	for _, c := range st.Sender.Collectors {
		state := string(c.State)
		if c.Fault != "" {
			state += ", " + string(c.Fault)
		}
		if c.LastError != "" {
			state += ", last error: " + c.LastError
		}
		t.rows = append(t.rows, []string{"collector " + c.Address, state})
	}
	for _, p := range st.Parked {
		t.rows = append(t.rows, []string{"parked conflict", p.ID})
	}
	return t
}

// agentRequest calls the agent's HTTP address.
func agentRequest(ctx context.Context, method, addr, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(addr, "/")+path, nil)
	if err != nil {
		return nil, &cli.ExitError{Code: cli.ExitUsage, Err: err}
	}
	if token := os.Getenv(tokenVariable); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, &cli.ExitError{Code: cli.ExitUnreachable, Err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		return nil, fmt.Errorf("%s %s: %s: %s", method, req.URL, resp.Status, strings.TrimSpace(string(b)))
	}
	return b, nil
}
