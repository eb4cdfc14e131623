package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"lightmetrics.dev/lightmetrics/internal/cli"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

func storeUsageCommand(out *format) *cobra.Command {
	addr := storeAdmin
	cmd := &cobra.Command{
		Use:   "usage",
		Short: "Show what each bucket of an embedded object store holds, and its quota",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var r objectstore.UsageReport
			if err := askStore(cmd, addr, http.MethodGet, "/usage", nil, &r); err != nil {
				return err
			}
			return out.write(cmd.OutOrStdout(), r, usageTable(r))
		},
	}
	storeAdminFlag(cmd, &addr)
	return cmd
}

func storeQuotaCommand(out *format) *cobra.Command {
	addr := storeAdmin
	var most config.Bytes
	var objects int64
	cmd := &cobra.Command{
		Use:   "quota BUCKET [--bytes SIZE] [--objects N]",
		Short: "Set the quota of a bucket of an embedded object store",
		Long: "Bounds the bytes of all versions and of the parts of open uploads, and the number of objects with all their versions;\n" +
			"0, or no flag, is no bound. What is there stays. A quota in the store's settings is set again at its next start.",
		Example: "  lmctl store quota metrics --bytes 500GiB --objects 10000000",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if most < 0 || objects < 0 {
				return &cli.ExitError{Code: cli.ExitUsage, Err: errors.New("a quota is not negative")}
			}
			body, err := json.Marshal(map[string]int64{"bytes": int64(most), "objects": objects})
			if err != nil {
				return err
			}
			var r objectstore.UsageReport
			if err := askStore(cmd, addr, http.MethodPut, "/quotas/"+url.PathEscape(args[0]), bytes.NewReader(body), &r); err != nil {
				return err
			}
			return out.write(cmd.OutOrStdout(), r, usageTable(r))
		},
	}
	storeAdminFlag(cmd, &addr)
	cmd.Flags().TextVar(&most, "bytes", config.Bytes(0), "most bytes, such as 500GiB")
	cmd.Flags().Int64Var(&objects, "objects", 0, "most objects")
	return cmd
}

func usageTable(r objectstore.UsageReport) table {
	t := table{header: []string{"BUCKET", "BYTES", "OF", "OBJECTS", "OF"}}
	bound := func(n int64) string {
		if n == 0 {
			return "-"
		}
		return fmt.Sprint(n)
	}
	for _, u := range r.Buckets {
		t.rows = append(t.rows, []string{u.Bucket, fmt.Sprint(u.Bytes), bound(u.Quota.Bytes), fmt.Sprint(u.Objects), bound(u.Quota.Objects)})
	}
	return t
}
