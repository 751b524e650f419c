"""Show a result: terminal, JSON, CSV, Chrome trace.

What commands print and write is imported when it is first used.
"""

from typing import TYPE_CHECKING

from traincast.lazy import names_on_demand

if TYPE_CHECKING:
    from traincast.report.annotations import annotated as annotated
    from traincast.report.csv import predictions_csv as predictions_csv
    from traincast.report.documents import DOCUMENTS as DOCUMENTS
    from traincast.report.documents import schema as schema
    from traincast.report.end_to_end import simai_end_to_end as simai_end_to_end
    from traincast.report.exports import planned_job_file as planned_job_file
    from traincast.report.failure import failure_of as failure_of
    from traincast.report.files import REPORTS as REPORTS
    from traincast.report.files import write_directory as write_directory
    from traincast.report.files import write_files as write_files
    from traincast.report.files import write_whole as write_whole
    from traincast.report.job_files import advised_job_file as advised_job_file
    from traincast.report.json import alarm_to_dict as alarm_to_dict
    from traincast.report.json import calibration_to_dict as calibration_to_dict
    from traincast.report.json import check_to_dict as check_to_dict
    from traincast.report.json import clusters_to_dict as clusters_to_dict
    from traincast.report.json import collective_comparison_to_dict as collective_comparison_to_dict
    from traincast.report.json import collective_to_dict as collective_to_dict
    from traincast.report.json import comparison_to_dict as comparison_to_dict
    from traincast.report.json import conversion_to_dict as conversion_to_dict
    from traincast.report.json import encode as encode
    from traincast.report.json import encode_line as encode_line
    from traincast.report.json import failure_to_dict as failure_to_dict
    from traincast.report.json import inspection_to_dict as inspection_to_dict
    from traincast.report.json import inspections_to_dict as inspections_to_dict
    from traincast.report.json import models_to_dict as models_to_dict
    from traincast.report.json import operator_calibration_to_dict as operator_calibration_to_dict
    from traincast.report.json import operator_to_dict as operator_to_dict
    from traincast.report.json import plan_to_dict as plan_to_dict
    from traincast.report.json import ranking_to_dict as ranking_to_dict
    from traincast.report.json import result_to_dict as result_to_dict
    from traincast.report.json import run_calibration_to_dict as run_calibration_to_dict
    from traincast.report.json import simai_to_dict as simai_to_dict
    from traincast.report.json import validation_to_dict as validation_to_dict
    from traincast.report.junit import check_to_junit as check_to_junit
    from traincast.report.plan_files import write_plan as write_plan
    from traincast.report.sweep_table import check_table as check_table
    from traincast.report.terminal.accuracy import print_calibration as print_calibration
    from traincast.report.terminal.accuracy import print_collective_comparison as print_collective_comparison
    from traincast.report.terminal.accuracy import print_operator_calibration as print_operator_calibration
    from traincast.report.terminal.accuracy import print_run_calibration as print_run_calibration
    from traincast.report.terminal.accuracy import print_validation as print_validation
    from traincast.report.terminal.alarms import alarm_text as alarm_text
    from traincast.report.terminal.catalog import print_cluster_numbers as print_cluster_numbers
    from traincast.report.terminal.catalog import print_clusters as print_clusters
    from traincast.report.terminal.catalog import print_model_counts as print_model_counts
    from traincast.report.terminal.catalog import print_models as print_models
    from traincast.report.terminal.catalog import print_recipes as print_recipes
    from traincast.report.terminal.check import check_line as check_line
    from traincast.report.terminal.check import print_check as print_check
    from traincast.report.terminal.comparison import print_comparison as print_comparison
    from traincast.report.terminal.console import console_for as console_for
    from traincast.report.terminal.estimates import print_collective as print_collective
    from traincast.report.terminal.estimates import print_operator as print_operator
    from traincast.report.terminal.estimates import print_simai as print_simai
    from traincast.report.terminal.inspection import print_conversion as print_conversion
    from traincast.report.terminal.inspection import print_inspections as print_inspections
    from traincast.report.terminal.plans import brief_lines as brief_lines
    from traincast.report.terminal.plans import show_plan as show_plan
    from traincast.report.terminal.ranking import print_ranking as print_ranking
    from traincast.report.terminal.sections import sections_of as sections_of
    from traincast.report.terminal.step import print_result as print_result

__getattr__, __dir__ = names_on_demand(
    __name__,
    {
        "traincast.report.annotations": "annotated",
        "traincast.report.csv": "predictions_csv",
        "traincast.report.documents": "DOCUMENTS schema",
        "traincast.report.end_to_end": "simai_end_to_end",
        "traincast.report.exports": "planned_job_file",
        "traincast.report.failure": "failure_of",
        "traincast.report.files": "REPORTS write_directory write_files write_whole",
        "traincast.report.job_files": "advised_job_file",
        "traincast.report.json": (
            "alarm_to_dict calibration_to_dict check_to_dict clusters_to_dict collective_comparison_to_dict "
            "collective_to_dict comparison_to_dict conversion_to_dict encode encode_line failure_to_dict "
            "inspection_to_dict inspections_to_dict models_to_dict operator_calibration_to_dict operator_to_dict "
            "plan_to_dict ranking_to_dict result_to_dict run_calibration_to_dict simai_to_dict validation_to_dict"
        ),
        "traincast.report.junit": "check_to_junit",
        "traincast.report.plan_files": "write_plan",
        "traincast.report.sweep_table": "check_table",
        "traincast.report.terminal.accuracy": (
            "print_calibration print_collective_comparison print_operator_calibration print_run_calibration "
            "print_validation"
        ),
        "traincast.report.terminal.alarms": "alarm_text",
        "traincast.report.terminal.catalog": (
            "print_cluster_numbers print_clusters print_model_counts print_models print_recipes"
        ),
        "traincast.report.terminal.check": "check_line print_check",
        "traincast.report.terminal.comparison": "print_comparison",
        "traincast.report.terminal.console": "console_for",
        "traincast.report.terminal.estimates": "print_collective print_operator print_simai",
        "traincast.report.terminal.inspection": "print_conversion print_inspections",
        "traincast.report.terminal.plans": "brief_lines show_plan",
        "traincast.report.terminal.ranking": "print_ranking",
        "traincast.report.terminal.sections": "sections_of",
        "traincast.report.terminal.step": "print_result",
    },
)
