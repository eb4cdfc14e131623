package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"lightmetrics.dev/lightmetrics/internal/cli"
	coordinatorv1 "lightmetrics.dev/lightmetrics/proto/gen/lightmetrics/coordinator/v1"
)

// identityAPI is how to reach the identity linearizer of a coordinator.
type identityAPI struct{ service }

func (c *identityAPI) flags(cmd *cobra.Command) {
	c.service.flags(cmd, "127.0.0.1:4781", "coordinator")
}

func (c *identityAPI) ask(ctx context.Context, fn func(context.Context, coordinatorv1.IdentityServiceClient) error) error {
	return c.service.ask(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		return fn(ctx, coordinatorv1.NewIdentityServiceClient(conn))
	})
}

// addTimeout bounds a change of the regions: all regions are read for it, one request for each manifest.
const addTimeout = 6 * time.Hour

func regionsCommand(out *format) *cobra.Command {
	c := &identityAPI{}
	cmd := &cobra.Command{Use: "regions", Short: "Regions that accept batches together, and their epoch"}
	cmd.AddCommand(regionsList(out, c), regionsPrepare(out, c), regionsAdd(out, c), regionsRetire(out, c), regionsDissolve(out, c))
	c.flags(cmd)
	return cmd
}

type memberView struct {
	Region   string        `json:"region"`
	Member   bool          `json:"member"`
	Retired  bool          `json:"retired,omitempty"`
	Joining  bool          `json:"joining,omitempty"`
	Epoch    uint64        `json:"epoch"`
	EpochID  string        `json:"epoch_id,omitempty"`
	Prepared *preparedView `json:"prepared,omitempty"`
	Error    string        `json:"error,omitempty"`
}

// preparedView is how far what a region has accepted is prepared.
type preparedView struct {
	Region  string `json:"region,omitempty"`
	Batches uint64 `json:"batches"`
	Left    uint64 `json:"left,omitempty"`
	Folded  uint64 `json:"folded_batches,omitempty"`
	Through string `json:"accepted_through"`
	Updated string `json:"updated"`
}

func preparedViewOf(p *coordinatorv1.RegionPreparation) *preparedView {
	if p == nil {
		return nil
	}
	return &preparedView{Batches: p.GetBatches(), Left: p.GetLeft(), Folded: p.GetFoldedBatches(), Through: when(p.GetAcceptedAtUnixNs()), Updated: when(p.GetUpdatedAtUnixNs())}
}

// cell is it in a table.
func (v *preparedView) cell() string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%d through %s", v.Batches+v.Folded, orDash(v.Through))
}

type membersView struct {
	Epoch   uint64 `json:"etcd_epoch"`
	Cluster string `json:"etcd_cluster"`
	NotOpen string `json:"not_open,omitempty"`
	// Dissolved: the member accepts without a linearizer.
	Dissolved bool         `json:"dissolved,omitempty"`
	Regions   []memberView `json:"regions"`
}

func regionsList(out *format, c *identityAPI) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List regions with the epoch that their buckets have; exits 3 when identities are not decided, or a bucket can't be read",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var v membersView
			rows, bad := [][]string{}, false
			err := c.ask(cmd.Context(), func(ctx context.Context, cl coordinatorv1.IdentityServiceClient) error {
				r, err := cl.ListRegions(ctx, &coordinatorv1.ListRegionsRequest{})
				v = membersView{Epoch: r.GetEpoch(), Cluster: r.GetCluster(), NotOpen: r.GetNotOpen(), Dissolved: r.GetDissolved(), Regions: []memberView{}}
				for _, p := range r.GetRegions() {
					one := memberView{p.GetRegion(), p.GetMember(), p.GetRetired(), p.GetJoining(), p.GetEpoch(), p.GetEpochId(), preparedViewOf(p.GetPreparation()), p.GetError()}
					v.Regions = append(v.Regions, one)
					// A region that was retired need not be there.
					bad = bad || one.Error != "" && !one.Retired
					state := "takes part"
					switch {
					case one.Retired:
						state = "retired"
					case one.Error != "" && one.Member:
						state += "; " + one.Error
					case one.Error != "":
						state = one.Error
					case one.Member && v.Dissolved:
						state = "accepts without the linearizer, which was dissolved"
					case !one.Member:
						state = "not added yet (lmctl regions prepare, then add)"
					case one.Joining:
						state = "is being added"
					}
					epoch := "-" // its bucket has none, or can't be read
					if one.Epoch > 0 {
						epoch = fmt.Sprint(one.Epoch)
					}
					rows = append(rows, []string{one.Region, epoch, orDash(one.EpochID), one.Prepared.cell(), state})
				}
				return err
			})
			if err != nil {
				return err
			}
			if err := out.write(cmd.OutOrStdout(), v, table{header: []string{"REGION", "EPOCH", "ID", "PREPARED", "STATE"}, rows: rows}); err != nil {
				return err
			}
			switch {
			case v.NotOpen != "":
				return &cli.ExitError{Code: cli.ExitFindings, Err: fmt.Errorf("identities are not decided: %s", v.NotOpen)}
			case bad:
				return &cli.ExitError{Code: cli.ExitFindings, Err: errors.New("a region's bucket can't be read, or is not the region's")}
			}
			return nil
		},
	}
}

type addedView struct {
	Region string `json:"region"`
	Epoch  uint64 `json:"epoch"`
	Claims uint64 `json:"claims"`
}

func regionsAdd(out *format, c *identityAPI) *cobra.Command {
	return &cobra.Command{
		Use:   "add REGION",
		Short: "Let a region of the coordinators' settings take part",
		Long: "Begins an epoch in which the region takes part. All regions are read for it, that one's earlier batches among them, and no identity\n" +
			"is decided meanwhile: collectors answer \"retry\". It waits until that is done; where it is interrupted, the coordinator that leads goes on\n" +
			"with it. Every coordinator must have the region in its settings first. To add it twice is harmless.\n\n" +
			"Prepare a region first that has a history (lmctl regions prepare), and stop its collectors of s3_manifest before it is added. One with\n" +
			"too much that is not prepared is refused before anything changes. Where no region takes part yet, all of the settings are added at once.",
		Example: "  lmctl regions add asia",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			v := addedView{Region: args[0]}
			ctx, cancel := context.WithTimeout(cmd.Context(), addTimeout)
			defer cancel()
			err := c.over(func(conn grpc.ClientConnInterface) error {
				r, err := coordinatorv1.NewIdentityServiceClient(conn).AddRegion(ctx, &coordinatorv1.AddRegionRequest{Region: args[0]})
				v.Epoch, v.Claims = r.GetEpoch(), r.GetClaims()
				return err
			})
			if err != nil {
				return err
			}
			return out.write(cmd.OutOrStdout(), v, table{header: []string{"REGION", "EPOCH", "CLAIMS FOUND"}, rows: [][]string{{v.Region, fmt.Sprint(v.Epoch), fmt.Sprint(v.Claims)}}})
		},
	}
}

func regionsPrepare(out *format, c *identityAPI) *cobra.Command {
	return &cobra.Command{
		Use:   "prepare REGION",
		Short: "Prepare a region with a history to be added, while it goes on",
		Long: "Writes down what the region has accepted on its own, from its journal, so that to add it takes seconds and not hours. Its collectors may\n" +
			"accept meanwhile, and nothing changes for anybody. Each call goes on where the last one ended, whoever interrupted it, and reads what\n" +
			"the region's reconciler has folded of the journal: call it once more just before the region is added.\n\n" +
			"Of a region that takes part it folds what the journal says that it has decided: for a recovery that is refused because too many\n" +
			"batches are not folded.",
		Example: "  lmctl regions prepare asia",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), addTimeout)
			defer cancel()
			var v *preparedView
			err := c.over(func(conn grpc.ClientConnInterface) error {
				for {
					r, err := coordinatorv1.NewIdentityServiceClient(conn).PrepareRegion(ctx, &coordinatorv1.PrepareRegionRequest{Region: args[0]})
					if err != nil {
						return err
					}
					if v = preparedViewOf(r.GetPreparation()); r.GetDone() {
						return nil
					}
					fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", args[0], v.cell())
				}
			})
			if err != nil {
				return err
			}
			v.Region = args[0]
			row := []string{v.Region, fmt.Sprint(v.Batches), fmt.Sprint(v.Left), fmt.Sprint(v.Folded), orDash(v.Through)}
			return out.write(cmd.OutOrStdout(), v, table{header: []string{"REGION", "PREPARED", "LEFT", "FOLDED", "ACCEPTED THROUGH"}, rows: [][]string{row}})
		},
	}
}

func regionsRetire(out *format, c *identityAPI) *cobra.Command {
	var yes, forget bool
	cmd := &cobra.Command{
		Use:   "retire REGION",
		Short: "Take a region out for good; its bucket need not be there",
		Long: "Begins an epoch without the region, in which none of its collectors is answered. The other regions are read for it, and no identity is\n" +
			"decided meanwhile: collectors answer \"retry\". What was decided in the region stays decided: another frame of the same identity is\n" +
			"refused. Its batches are no longer counted by the others; where a sender still has one, the same frame is accepted again. There is no\n" +
			"way back: the name is never used again.\n\n" +
			"A region that comes back needs no retirement: meanwhile the others accept everything. Stop its collectors, reconcilers and rollup\n" +
			"workers first, if they run; take it out of the settings afterwards. Where the command is interrupted, the coordinator that leads goes\n" +
			"on with it, and to retire a region twice is harmless.\n\n" +
			"Where etcd was restored, or a recovery did not end, the region has to be there for a recovery first: only its bucket has what was\n" +
			"decided there. If it never will be, --forget retires it all the same: identities that only it had may then be given to another frame.",
		Example: "  lmctl regions retire asia --yes",
		Args:    cobra.ExactArgs(1),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "retire it; there is no way back")
	cmd.Flags().BoolVar(&forget, "forget", false, "although what was decided there can't be known any more")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !yes {
			return usageError("a region is retired for good: say --yes")
		}
		v := addedView{Region: args[0]}
		ctx, cancel := context.WithTimeout(cmd.Context(), addTimeout)
		defer cancel()
		err := c.over(func(conn grpc.ClientConnInterface) error {
			r, err := coordinatorv1.NewIdentityServiceClient(conn).RetireRegion(ctx, &coordinatorv1.RetireRegionRequest{Region: args[0], Forget: forget})
			v.Epoch, v.Claims = r.GetEpoch(), r.GetClaims()
			return err
		})
		if err != nil {
			return err
		}
		return out.write(cmd.OutOrStdout(), v, table{header: []string{"REGION", "EPOCH", "CLAIMS FOUND"}, rows: [][]string{{v.Region, fmt.Sprint(v.Epoch), fmt.Sprint(v.Claims)}}})
	}
	return cmd
}

type dissolvedView struct {
	Region string `json:"region"`
	Epoch  uint64 `json:"epoch"`
}

func regionsDissolve(out *format, c *identityAPI) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "dissolve REGION",
		Short: "End the linearizer of the only region that is left; its collectors accept with s3_manifest again",
		Long: "Ends the linearizer, once all regions but REGION are retired. Its bucket is an acceptance authority of its own again: collectors with\n" +
			"acceptance: global refuse it from then on, and those with s3_manifest take it. What was decided there has a manifest there.\n\n" +
			"Let the agents drain and stop the collectors first. It is refused while claims are left that are not settled: the region's reconciler\n" +
			"finishes them. Where it is interrupted, the coordinator that leads goes on with it, and to dissolve it twice is harmless.\n\n" +
			"What regions decided that were retired is known to nobody any more who accepts: the same identity may then be given to another frame.\n" +
			"The way back is \"lmctl regions add\".",
		Example: "  lmctl regions dissolve eu --yes",
		Args:    cobra.ExactArgs(1),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "dissolve it")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !yes {
			return usageError("what retired regions decided is forgotten by who accepts then: say --yes")
		}
		v := dissolvedView{Region: args[0]}
		ctx, cancel := context.WithTimeout(cmd.Context(), addTimeout)
		defer cancel()
		err := c.over(func(conn grpc.ClientConnInterface) error {
			r, err := coordinatorv1.NewIdentityServiceClient(conn).DissolveLinearizer(ctx, &coordinatorv1.DissolveLinearizerRequest{Region: args[0]})
			v.Epoch = r.GetEpoch()
			return err
		})
		if err != nil {
			return err
		}
		return out.write(cmd.OutOrStdout(), v, table{header: []string{"REGION", "EPOCH"}, rows: [][]string{{v.Region, fmt.Sprint(v.Epoch)}}})
	}
	return cmd
}
